/* A device's memory: reports the claim's limit and use in place of the device's. */
#include "nvml/claim.h"

/* Replaces the driver's values by the claim's. `free` is never more than what is physically free. */
#define REPORT_CLAIM(memory, claimed)                                                                                  \
    do {                                                                                                               \
        (memory)->total = minimum((memory)->total, (claimed).limit);                                                   \
        (memory)->used = minimum((claimed).used, (memory)->total);                                                     \
        (memory)->free = minimum((memory)->free, (memory)->total - (memory)->used);                                    \
    } while (0)

/* Reads the device's claims after the driver's call, unless that failed. The memory of a device without a claim, such as the
 * GPU of a MIG instance, is nobody's to see: programs take a success for a GPU that has memory, and divide by its total. */
static nvmlReturn_t read_claims_after(nvmlReturn_t result, nvmlDevice_t device, struct claimed *claimed) {
    if (result == NVML_SUCCESS)
        result = nvml_read_claims(device, claimed);
    return result == NVML_SUCCESS && claimed->gpu < 0 ? NVML_ERROR_NO_PERMISSION : result;
}

/* The driver's answer in a copy of the caller's struct, which never has values of a device without a claim. */
#define QUERY(symbol, device, answer, claimed, change)                                                                 \
    do {                                                                                                               \
        if ((answer) == NULL)                                                                                          \
            return REAL(symbol)(device, NULL);                                                                         \
        __typeof__(*(answer)) copy = *(answer);                                                                        \
        struct claimed claimed;                                                                                        \
        nvmlReturn_t result = read_claims_after(REAL(symbol)(device, &copy), device, &claimed);                        \
        if (result == NVML_SUCCESS) {                                                                                  \
            change;                                                                                                    \
            *(answer) = copy;                                                                                          \
        }                                                                                                              \
        return result;                                                                                                 \
    } while (0)

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    QUERY(nvmlDeviceGetMemoryInfo, device, memory, claimed, REPORT_CLAIM(&copy, claimed));
}

/* The driver answers only for versions of the struct that it knows. There is one so far. `reserved` is the driver's own
 * memory, which is part of no claim. */
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    QUERY(nvmlDeviceGetMemoryInfo_v2, device, memory, claimed, REPORT_CLAIM(&copy, claimed); copy.reserved = 0);
}

/* A claim does not record protected memory separately, so all of its use is reported. */
nvmlReturn_t nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t device, nvmlMemory_t *memory) {
    QUERY(nvmlDeviceGetConfComputeProtectedMemoryUsage, device, memory, claimed, REPORT_CLAIM(&copy, claimed));
}

static void limit_sizes(nvmlConfComputeMemSizeInfo_t *sizes, unsigned long long limit) {
    sizes->protectedMemSizeKib = minimum(sizes->protectedMemSizeKib, limit >> 10);
    sizes->unprotectedMemSizeKib = minimum(sizes->unprotectedMemSizeKib, (limit >> 10) - sizes->protectedMemSizeKib);
}

nvmlReturn_t nvmlDeviceGetConfComputeMemSizeInfo(nvmlDevice_t device, nvmlConfComputeMemSizeInfo_t *sizes) {
    QUERY(nvmlDeviceGetConfComputeMemSizeInfo, device, sizes, claimed, limit_sizes(&copy, claimed.limit));
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *what) {
    QUERY(nvmlDeviceGetAttributes, device, what, claimed,
          copy.memorySizeMB = minimum(copy.memorySizeMB, claimed.limit >> 20));
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *what) {
    QUERY(nvmlDeviceGetAttributes_v2, device, what, claimed,
          copy.memorySizeMB = minimum(copy.memorySizeMB, claimed.limit >> 20));
}
