/* What NVML says of a device's memory is what its claim says. */
#include "nvml/claim.h"

/* Replaces what the driver said by the fraction; free is never more than what is physically free. */
#define REPORT_FRACTION(memory, fraction)                                                                              \
    do {                                                                                                               \
        (memory)->total = minimum((memory)->total, (fraction).limit);                                                  \
        (memory)->used = minimum((fraction).used, (memory)->total);                                                    \
        (memory)->free = minimum((memory)->free, (memory)->total - (memory)->used);                                    \
    } while (0)

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    struct fraction fraction;
    nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo)(device, memory);
    if (result == NVML_SUCCESS)
        result = nvml_read_fraction(device, &fraction);
    if (result == NVML_SUCCESS)
        REPORT_FRACTION(memory, fraction);
    return result;
}

/* The driver answers only for a version that it knows, and versions differ in size: so far there is this one. */
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    struct fraction fraction;
    nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);
    if (result == NVML_SUCCESS)
        result = nvml_read_fraction(device, &fraction);
    if (result == NVML_SUCCESS) {
        REPORT_FRACTION(memory, fraction);
        memory->reserved = 0; /* the driver's own share is nobody's fraction */
    }
    return result;
}

/* What is protected and in use is not known of a claim: all that it has taken. */
nvmlReturn_t nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t device, nvmlMemory_t *memory) {
    struct fraction fraction;
    nvmlReturn_t result = REAL(nvmlDeviceGetConfComputeProtectedMemoryUsage)(device, memory);
    if (result == NVML_SUCCESS)
        result = nvml_read_fraction(device, &fraction);
    if (result == NVML_SUCCESS)
        REPORT_FRACTION(memory, fraction);
    return result;
}

nvmlReturn_t nvmlDeviceGetConfComputeMemSizeInfo(nvmlDevice_t device, nvmlConfComputeMemSizeInfo_t *sizes) {
    struct fraction fraction;
    nvmlReturn_t result = REAL(nvmlDeviceGetConfComputeMemSizeInfo)(device, sizes);
    if (result == NVML_SUCCESS)
        result = nvml_read_fraction(device, &fraction);
    if (result == NVML_SUCCESS) {
        sizes->protectedMemSizeKib = minimum(sizes->protectedMemSizeKib, fraction.limit >> 10);
        sizes->unprotectedMemSizeKib =
            minimum(sizes->unprotectedMemSizeKib, (fraction.limit >> 10) - sizes->protectedMemSizeKib);
    }
    return result;
}

static nvmlReturn_t attributes(nvmlDevice_t device, nvmlReturn_t result, nvmlDeviceAttributes_t *attributes) {
    struct fraction fraction;
    if (result == NVML_SUCCESS)
        result = nvml_read_fraction(device, &fraction);
    if (result == NVML_SUCCESS)
        attributes->memorySizeMB = minimum(attributes->memorySizeMB, fraction.limit >> 20);
    return result;
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *what) {
    return attributes(device, REAL(nvmlDeviceGetAttributes)(device, what), what);
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *what) {
    return attributes(device, REAL(nvmlDeviceGetAttributes_v2)(device, what), what);
}
