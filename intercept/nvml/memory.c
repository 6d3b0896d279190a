/* A device's memory: reports the claim's limit and use in place of the device's. */
#include "nvml/claim.h"

/* Replaces the driver's values by the claim's. `free` is never more than what is physically free. */
#define REPORT_CLAIM(memory, claimed)                                                                                  \
    do {                                                                                                               \
        (memory)->total = minimum((memory)->total, (claimed).limit);                                                   \
        (memory)->used = minimum((claimed).used, (memory)->total);                                                     \
        (memory)->free = minimum((memory)->free, (memory)->total - (memory)->used);                                    \
    } while (0)

/* Reads the device's claims after the driver's call, unless that failed. */
static nvmlReturn_t read_claims_after(nvmlReturn_t result, nvmlDevice_t device, struct claimed *claimed) {
    return result == NVML_SUCCESS ? nvml_read_claims(device, claimed) : result;
}

static nvmlReturn_t report(nvmlDevice_t device, nvmlReturn_t result, nvmlMemory_t *memory) {
    struct claimed claimed;
    result = read_claims_after(result, device, &claimed);
    if (result == NVML_SUCCESS)
        REPORT_CLAIM(memory, claimed);
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    return report(device, REAL(nvmlDeviceGetMemoryInfo)(device, memory), memory);
}

/* The driver answers only for versions of the struct that it knows. There is one so far. */
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    struct claimed claimed;
    nvmlReturn_t result = read_claims_after(REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory), device, &claimed);
    if (result == NVML_SUCCESS) {
        REPORT_CLAIM(memory, claimed);
        memory->reserved = 0; /* the driver's own memory, which is part of no claim */
    }
    return result;
}

/* A claim does not record protected memory separately, so all of its use is reported. */
nvmlReturn_t nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t device, nvmlMemory_t *memory) {
    return report(device, REAL(nvmlDeviceGetConfComputeProtectedMemoryUsage)(device, memory), memory);
}

nvmlReturn_t nvmlDeviceGetConfComputeMemSizeInfo(nvmlDevice_t device, nvmlConfComputeMemSizeInfo_t *sizes) {
    struct claimed claimed;
    nvmlReturn_t result = read_claims_after(REAL(nvmlDeviceGetConfComputeMemSizeInfo)(device, sizes), device, &claimed);
    if (result == NVML_SUCCESS) {
        sizes->protectedMemSizeKib = minimum(sizes->protectedMemSizeKib, claimed.limit >> 10);
        sizes->unprotectedMemSizeKib =
            minimum(sizes->unprotectedMemSizeKib, (claimed.limit >> 10) - sizes->protectedMemSizeKib);
    }
    return result;
}

static nvmlReturn_t attributes(nvmlDevice_t device, nvmlReturn_t result, nvmlDeviceAttributes_t *attributes) {
    struct claimed claimed;
    result = read_claims_after(result, device, &claimed);
    if (result == NVML_SUCCESS)
        attributes->memorySizeMB = minimum(attributes->memorySizeMB, claimed.limit >> 20);
    return result;
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *what) {
    return attributes(device, REAL(nvmlDeviceGetAttributes)(device, what), what);
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *what) {
    return attributes(device, REAL(nvmlDeviceGetAttributes_v2)(device, what), what);
}
