/* Prints the first GPU's memory by NVML: "total used free" in MiB, by nvmlDeviceGetMemoryInfo and by its _v2. */
#include "../driver/nvml_api.h"

#include <stdio.h>

nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int, nvmlDevice_t *);
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t, nvmlMemory_t *);
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t, nvmlMemory_v2_t *);

int main(void) {
    nvmlDevice_t device;
    nvmlMemory_t first;
    nvmlMemory_v2_t second = {.version = (unsigned)sizeof second | 2u << 24}, wrong = {.version = 77};
    nvmlReturn_t result = nvmlInit_v2();
    if (result == NVML_SUCCESS)
        result = nvmlDeviceGetHandleByIndex_v2(0, &device);
    if (result == NVML_SUCCESS)
        result = nvmlDeviceGetMemoryInfo(device, &first);
    if (result == NVML_SUCCESS)
        result = nvmlDeviceGetMemoryInfo_v2(device, &second);
    if (result != NVML_SUCCESS) {
        printf("error %d\n", result);
        return 1;
    }
    if (nvmlDeviceGetMemoryInfo_v2(device, &wrong) == NVML_SUCCESS)
        puts("took a version that there is not");
    printf("%llu %llu %llu / %llu %llu %llu\n", first.total >> 20, first.used >> 20, first.free >> 20,
           second.total >> 20, second.used >> 20, second.free >> 20);
    return 0;
}
