/*
 * Which GPUs there are: under `tranche run` the program's own, and no other, as in a container that has the node of one
 * GPU. Its index is 0, as it is in CUDA. Of a MIG instance, that is the GPU with this one instance.
 */
#include "nvml/claim.h"

#include <string.h>

static bool is_mig(const char *uuid) {
    return strncmp(uuid, "MIG-", sizeof "MIG-" - 1) == 0;
}

/* The GPU with this UUID, or with this MIG instance. */
static nvmlReturn_t find_gpu(const char *uuid, nvmlDevice_t *device) {
    nvmlReturn_t result = REAL(nvmlDeviceGetHandleByUUID)(uuid, device);
    if (result == NVML_SUCCESS && is_mig(uuid))
        result = REAL(nvmlDeviceGetDeviceHandleFromMigDeviceHandle)(*device, device);
    return result;
}

/* Whether the program sees a device. */
static bool is_visible(nvmlDevice_t device) {
    const char *uuid = claims_visible_gpu();
    nvmlDevice_t own;
    return uuid == NULL || (find_gpu(uuid, &own) == NVML_SUCCESS && own == device) ||
           (REAL(nvmlDeviceGetHandleByUUID)(uuid, &own) == NVML_SUCCESS && own == device);
}

static nvmlReturn_t count_visible(nvmlReturn_t result, unsigned int *count) {
    if (result == NVML_SUCCESS && *count > 1 && claims_visible_gpu() != NULL)
        *count = 1;
    return result;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) {
    return count_visible(REAL(nvmlDeviceGetCount)(count), count);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    return count_visible(REAL(nvmlDeviceGetCount_v2)(count), count);
}

/* The driver's answer to a query for its first GPU permits an answer: it decides whether the library is initialised. */
static nvmlReturn_t find_index(const char *uuid, nvmlReturn_t first, unsigned int index, nvmlDevice_t *device) {
    if (first != NVML_SUCCESS)
        return first;
    return index == 0 && device != NULL ? find_gpu(uuid, device) : NVML_ERROR_INVALID_ARGUMENT;
}

#define BY_INDEX(symbol)                                                                                               \
    nvmlReturn_t symbol(unsigned int index, nvmlDevice_t *device) {                                                    \
        const char *uuid = claims_visible_gpu();                                                                       \
        unsigned int count;                                                                                            \
        return uuid == NULL ? REAL(symbol)(index, device)                                                              \
                            : find_index(uuid, REAL(nvmlDeviceGetCount_v2)(&count), index, device);                    \
    }
BY_INDEX(nvmlDeviceGetHandleByIndex)
BY_INDEX(nvmlDeviceGetHandleByIndex_v2)

/* The driver finds the device; a program that does not see it gets NVML_ERROR_NOT_FOUND. */
#define BY_NAME(symbol, type)                                                                                          \
    nvmlReturn_t symbol(type name, nvmlDevice_t *device) {                                                             \
        nvmlDevice_t found;                                                                                            \
        nvmlReturn_t result = REAL(symbol)(name, device == NULL ? NULL : &found);                                      \
        if (result == NVML_SUCCESS && !is_visible(found))                                                              \
            result = NVML_ERROR_NOT_FOUND;                                                                             \
        if (result == NVML_SUCCESS)                                                                                    \
            *device = found;                                                                                           \
        return result;                                                                                                 \
    }
BY_NAME(nvmlDeviceGetHandleBySerial, const char *)
BY_NAME(nvmlDeviceGetHandleByUUID, const char *)
BY_NAME(nvmlDeviceGetHandleByUUIDV, const nvmlUUID_t *)
BY_NAME(nvmlDeviceGetHandleByPciBusId, const char *)
BY_NAME(nvmlDeviceGetHandleByPciBusId_v2, const char *)

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    nvmlReturn_t result = REAL(nvmlDeviceGetIndex)(device, index);
    if (result == NVML_SUCCESS && claims_visible_gpu() != NULL)
        *index = 0;
    return result;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig) {
    const char *uuid = claims_visible_gpu();
    if (uuid == NULL || !is_mig(uuid) || mig == NULL || !is_visible(device))
        return REAL(nvmlDeviceGetMigDeviceHandleByIndex)(device, index, mig);
    return index == 0 ? REAL(nvmlDeviceGetHandleByUUID)(uuid, mig) : NVML_ERROR_NOT_FOUND;
}
