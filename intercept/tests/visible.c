/*
 * The GPU that CUDA has for this program: prints its UUID, or the error of cuInit, and the number of GPUs if it is not 1; then
 * what the environment says.
 *
 *   visible             with the environment as it is
 *   visible LIST        with CUDA_VISIBLE_DEVICES set to LIST by the program itself; "-": not set
 */
#include "../driver/cuda_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

CUresult cuInit(unsigned int);
CUresult cuDeviceGetCount(int *);
CUresult cuDeviceGet(CUdevice *, int);
CUresult cuDeviceGetUuid_v2(CUuuid *, CUdevice);

int main(int argc, char **argv) {
    CUdevice device;
    CUuuid uuid;
    int count = 0;
    if (argc > 1 && strcmp(argv[1], "-") == 0)
        unsetenv("CUDA_VISIBLE_DEVICES");
    else if (argc > 1)
        setenv("CUDA_VISIBLE_DEVICES", argv[1], 1);
    CUresult result = cuInit(0);
    if (result == CUDA_SUCCESS)
        result = cuInit(0);
    if (result == CUDA_SUCCESS)
        result = cuDeviceGetCount(&count);
    if (result == CUDA_SUCCESS)
        result = cuDeviceGet(&device, 0);
    if (result == CUDA_SUCCESS)
        result = cuDeviceGetUuid_v2(&uuid, device);
    if (result == CUDA_SUCCESS && count == 1)
        printf("%02x", (unsigned char)uuid.bytes[15]);
    else
        printf("error %d, %d GPUs", result, count);
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    printf(" %s\n", list != NULL ? list : "-");
    return 0;
}
