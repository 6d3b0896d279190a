/* Errors of GPU memory that a test orders: their counters, and what the GPU does about its memory: rows are remapped
 * from Ampere on, pages were retired on the generations before it. */
#include <string.h>

#include "nvml_sim.h"

#define REMAPS_ROWS_SINCE_MAJOR 8
#define BANKS 640

static bool ecc_enabled(int gpu) {
    uint64_t mode;

    return sim_setting(gpu, SIM_ECC_MODE, NVML_FEATURE_ENABLED, &mode) && mode == NVML_FEATURE_ENABLED;
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending) {
    int gpu;
    uint64_t mode;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (current == NULL || pending == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!sim_setting(gpu, SIM_ECC_MODE, NVML_FEATURE_ENABLED, &mode))
        return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = (nvmlEnableState_t)mode;
    return NVML_SUCCESS;
}

DEVICE_QUERY(nvmlDeviceGetDefaultEccMode, nvmlEnableState_t, NVML_FEATURE_ENABLED)

/* Where the GPU counts errors: NVML's and the simulator's numbers of errors and counters are the same. */
static nvmlReturn_t resolve_counter(nvmlDevice_t device, nvmlMemoryErrorType_t error, nvmlEccCounterType_t counter,
                                    const void *result, int *gpu) {
    nvmlReturn_t ret = device_resolve(device, gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (result == NULL || error >= NVML_MEMORY_ERROR_TYPE_COUNT || counter >= NVML_ECC_COUNTER_TYPE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    return ecc_enabled(*gpu) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static unsigned long long count(int gpu, nvmlMemoryErrorType_t error, nvmlEccCounterType_t counter,
                                enum sim_ecc_location location) {
    return sim_ecc_count(gpu, (enum sim_ecc_error)error, (enum sim_ecc_counter)counter, location);
}

/* From the location to the last one. */
static unsigned long long count_from(int gpu, nvmlMemoryErrorType_t error, nvmlEccCounterType_t counter,
                                     enum sim_ecc_location location) {
    unsigned long long sum = 0;

    for (; location < SIM_ECC_LOCATIONS; location++)
        sum += count(gpu, error, counter, location);
    return sum;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t error, nvmlEccCounterType_t counter,
                                         unsigned long long *total) {
    int gpu;
    nvmlReturn_t ret = resolve_counter(device, error, counter, total, &gpu);

    if (ret == NVML_SUCCESS)
        *total = count_from(gpu, error, counter, SIM_ECC_DRAM);
    return ret;
}

/* Memory, caches and registers have counters; texture units of this generation have none. */
nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t error,
                                             nvmlEccCounterType_t counter, nvmlMemoryLocation_t location,
                                             unsigned long long *errors) {
    int gpu;
    nvmlReturn_t ret = resolve_counter(device, error, counter, errors, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    switch (location) {
    case NVML_MEMORY_LOCATION_L1_CACHE:
        *errors = count(gpu, error, counter, SIM_ECC_L1);
        return NVML_SUCCESS;
    case NVML_MEMORY_LOCATION_L2_CACHE:
        *errors = count(gpu, error, counter, SIM_ECC_L2);
        return NVML_SUCCESS;
    case NVML_MEMORY_LOCATION_DRAM:
        *errors = count(gpu, error, counter, SIM_ECC_DRAM);
        return NVML_SUCCESS;
    case NVML_MEMORY_LOCATION_REGISTER_FILE:
        *errors = count(gpu, error, counter, SIM_ECC_REGISTERS);
        return NVML_SUCCESS;
    case NVML_MEMORY_LOCATION_SRAM:
        *errors = count_from(gpu, error, counter, SIM_ECC_L1);
        return NVML_SUCCESS;
    case NVML_MEMORY_LOCATION_TEXTURE_MEMORY:
    case NVML_MEMORY_LOCATION_TEXTURE_SHM:
    case NVML_MEMORY_LOCATION_CBU:
        return NVML_ERROR_NOT_SUPPORTED;
    default:
        return NVML_ERROR_INVALID_ARGUMENT;
    }
}

nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t error,
                                            nvmlEccCounterType_t counter, nvmlEccErrorCounts_t *counts) {
    int gpu;
    nvmlReturn_t ret = resolve_counter(device, error, counter, counts, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    *counts = (nvmlEccErrorCounts_t){
        .l1Cache = count(gpu, error, counter, SIM_ECC_L1),
        .l2Cache = count(gpu, error, counter, SIM_ECC_L2),
        .deviceMemory = count(gpu, error, counter, SIM_ECC_DRAM),
        .registerFile = count(gpu, error, counter, SIM_ECC_REGISTERS),
    };
    return NVML_SUCCESS;
}

/* Remapped rows are told of by GPUs that remap them, and by none in MIG mode. */
static nvmlReturn_t resolve_remapper(nvmlDevice_t device, int *gpu) {
    nvmlReturn_t ret = device_resolve(device, gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (sim_gpu_or_last(*gpu)->cc_major < REMAPS_ROWS_SINCE_MAJOR || sim_mig_on(*gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

static unsigned int set_or(int gpu, enum sim_setting setting, unsigned int fallback) {
    uint64_t value;

    return sim_setting(gpu, setting, fallback, &value) ? (unsigned int)value : fallback;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable, unsigned int *uncorrectable,
                                       unsigned int *pending, unsigned int *failure) {
    int gpu;
    nvmlReturn_t ret = resolve_remapper(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (correctable == NULL || uncorrectable == NULL || pending == NULL || failure == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *correctable = set_or(gpu, SIM_ROWS_CORRECTABLE, 0);
    *uncorrectable = set_or(gpu, SIM_ROWS_UNCORRECTABLE, 0);
    *pending = set_or(gpu, SIM_ROWS_PENDING, 0);
    *failure = set_or(gpu, SIM_ROWS_FAILED, 0);
    return NVML_SUCCESS;
}

/* How many banks have how many spare rows left: all of them, unless a test says otherwise. */
nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *values) {
    int gpu;
    nvmlReturn_t ret = resolve_remapper(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (values == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *values = (nvmlRowRemapperHistogramValues_t){
        .high = set_or(gpu, SIM_BANKS_HIGH, 0),
        .partial = set_or(gpu, SIM_BANKS_PARTIAL, 0),
        .low = set_or(gpu, SIM_BANKS_LOW, 0),
        .none = set_or(gpu, SIM_BANKS_NONE, 0),
    };
    unsigned int others = values->high + values->partial + values->low + values->none;
    values->max = others < BANKS ? BANKS - others : 0;
    return NVML_SUCCESS;
}

static nvmlReturn_t resolve_retirer(nvmlDevice_t device, int *gpu) {
    nvmlReturn_t ret = device_resolve(device, gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    return sim_gpu_or_last(*gpu)->cc_major < REMAPS_ROWS_SINCE_MAJOR && ecc_enabled(*gpu) ? NVML_SUCCESS
                                                                                          : NVML_ERROR_NOT_SUPPORTED;
}

/* Addresses are asked for by how many there is room for; without an array, only their number is. */
nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
                                       unsigned long long *addresses) {
    int gpu;
    nvmlReturn_t ret = resolve_retirer(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (count == NULL || cause >= NVML_PAGE_RETIREMENT_CAUSE_COUNT || (*count != 0 && addresses == NULL))
        return NVML_ERROR_INVALID_ARGUMENT;
    bool correctable = cause == NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS;
    unsigned int pages = set_or(gpu, correctable ? SIM_PAGES_CORRECTABLE : SIM_PAGES_UNCORRECTABLE, 0);
    if (addresses != NULL && *count < pages)
        ret = NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < pages && ret == NVML_SUCCESS && addresses != NULL; i++)
        addresses[i] = (unsigned long long)(i + 1) << 16;
    *count = pages;
    return ret;
}

nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, nvmlEnableState_t *pending) {
    int gpu;
    nvmlReturn_t ret = resolve_retirer(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (pending == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *pending = (nvmlEnableState_t)set_or(gpu, SIM_PAGES_PENDING, 0);
    return NVML_SUCCESS;
}
