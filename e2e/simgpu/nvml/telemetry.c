/* What is measured on a GPU: utilisation, temperature, power, clocks, the PCIe link. Utilisation comes from the GPU
 * time that the simulator books; the rest follows from it, so that a busy GPU looks busy. */
#include <stdlib.h>
#include <unistd.h>

#include "nvml_sim.h"

#define IDLE_POWER_MW 76000u
#define MAX_POWER_MW 700000u
#define MIN_POWER_MW 200000u
#define IDLE_CELSIUS 30u
#define BUSY_CELSIUS 65u
#define SHUTDOWN_CELSIUS 95u
#define SLOWDOWN_CELSIUS 92u
#define MAX_CELSIUS 87u
#define PCIE_GENERATION 5u
#define PCIE_WIDTH 16u
/* NVML says the 32 GT/s of a lane of generation 5 so. */
#define PCIE_LANE_MBPS 32000u
#define ENCODER_PERIOD_US 167000u

DEVICE_SETTING(nvmlDeviceGetPowerUsage, unsigned int, SIM_POWER_MW,
               IDLE_POWER_MW + (MAX_POWER_MW - IDLE_POWER_MW) / 100 * sim_gpu_utilisation(gpu))
DEVICE_QUERY(nvmlDeviceGetPowerManagementMode, nvmlEnableState_t, NVML_FEATURE_ENABLED)
DEVICE_SETTING(nvmlDeviceGetPowerManagementLimit, unsigned int, SIM_POWER_LIMIT_MW, MAX_POWER_MW)
DEVICE_QUERY(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, MAX_POWER_MW)
DEVICE_SETTING(nvmlDeviceGetEnforcedPowerLimit, unsigned int, SIM_POWER_LIMIT_MW, MAX_POWER_MW)
DEVICE_QUERY(nvmlDeviceGetPowerSource, nvmlPowerSource_t, NVML_POWER_SOURCE_AC)
DEVICE_QUERY(nvmlDeviceGetPerformanceState, nvmlPstates_t, NVML_PSTATE_0)
DEVICE_QUERY(nvmlDeviceGetPowerState, nvmlPstates_t, NVML_PSTATE_0)
DEVICE_SETTING(nvmlDeviceGetComputeMode, nvmlComputeMode_t, SIM_COMPUTE_MODE, NVML_COMPUTEMODE_DEFAULT)
DEVICE_SETTING(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, SIM_PERSISTENCE_MODE, NVML_FEATURE_ENABLED)
DEVICE_SETTING(nvmlDeviceGetDisplayMode, nvmlEnableState_t, SIM_DISPLAY_MODE, NVML_FEATURE_DISABLED)
DEVICE_QUERY(nvmlDeviceGetDisplayActive, nvmlEnableState_t, NVML_FEATURE_DISABLED)
DEVICE_SETTING(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, SIM_PCIE_GENERATION, PCIE_GENERATION)
DEVICE_SETTING(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned int, SIM_PCIE_GENERATION, PCIE_GENERATION)
DEVICE_SETTING(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, SIM_PCIE_WIDTH, PCIE_WIDTH)
DEVICE_SETTING(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, SIM_PCIE_GENERATION, PCIE_GENERATION)
DEVICE_SETTING(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, SIM_PCIE_WIDTH, PCIE_WIDTH)
DEVICE_QUERY(nvmlDeviceGetPcieLinkMaxSpeed, unsigned int, NVML_PCIE_LINK_MAX_SPEED_32000MBPS)
DEVICE_QUERY(nvmlDeviceGetPcieSpeed, unsigned int, PCIE_LANE_MBPS)
DEVICE_QUERY(nvmlDeviceGetPcieReplayCounter, unsigned int, 0)
DEVICE_QUERY(nvmlDeviceGetNumFans, unsigned int, 0)
DEVICE_QUERY(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long,
             sim_gpu_utilisation(gpu) == 0 ? nvmlClocksEventReasonGpuIdle : nvmlClocksEventReasonNone)
DEVICE_QUERY(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, nvmlClocksEventReasonGpuIdle)

/* Who may change the node may; MIG instances are always shared. */
nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (mode >= NVML_COMPUTEMODE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    /* Threads cannot have a GPU for themselves any more since CUDA 8. */
    if (mode == NVML_COMPUTEMODE_EXCLUSIVE_THREAD || gpu >= sim_gpu_count())
        return NVML_ERROR_NOT_SUPPORTED;
    return sim_set(gpu, SIM_COMPUTE_MODE, mode) == 0 ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons) {
    return nvmlDeviceGetCurrentClocksEventReasons(device, reasons);
}

nvmlReturn_t nvmlDeviceGetSupportedClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons) {
    return nvmlDeviceGetSupportedClocksEventReasons(device, reasons);
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *min, unsigned int *max) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (min == NULL || max == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *min = MIN_POWER_MW;
    *max = MAX_POWER_MW;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (utilization == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    /* Neither a GPU in MIG mode nor an instance of one tells it. */
    if (sim_mig_on(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    uint64_t percent, memory;
    if (!sim_setting(gpu, SIM_GPU_UTILISATION, sim_gpu_utilisation(gpu), &percent))
        return NVML_ERROR_NOT_SUPPORTED;
    /* Kernels of the simulator read and write half of the time that they run. */
    sim_setting(gpu, SIM_MEMORY_UTILISATION, percent / 2, &memory);
    *utilization = (nvmlUtilization_t){.gpu = (unsigned int)percent, .memory = (unsigned int)memory};
    return NVML_SUCCESS;
}

/* No process encodes or decodes video on the simulated GPU, unless a test says so. */
static nvmlReturn_t video_engine(nvmlDevice_t device, enum sim_setting setting, unsigned int *percent,
                                 unsigned int *period_us) {
    int gpu;
    uint64_t set;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (percent == NULL || period_us == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (sim_mig_on(gpu) || !sim_setting(gpu, setting, 0, &set))
        return NVML_ERROR_NOT_SUPPORTED;
    *percent = (unsigned int)set;
    *period_us = ENCODER_PERIOD_US;
    return NVML_SUCCESS;
}

/* Pictures and optical flow are nobody's matter here. */
static nvmlReturn_t idle_engine(nvmlDevice_t device, unsigned int *percent, unsigned int *period_us) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (percent == NULL || period_us == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (sim_mig_on(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    *percent = 0;
    *period_us = ENCODER_PERIOD_US;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *percent, unsigned int *period_us) {
    return video_engine(device, SIM_ENCODER_UTILISATION, percent, period_us);
}

nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *percent, unsigned int *period_us) {
    return video_engine(device, SIM_DECODER_UTILISATION, percent, period_us);
}

nvmlReturn_t nvmlDeviceGetJpgUtilization(nvmlDevice_t device, unsigned int *percent, unsigned int *period_us) {
    return idle_engine(device, percent, period_us);
}

nvmlReturn_t nvmlDeviceGetOfaUtilization(nvmlDevice_t device, unsigned int *percent, unsigned int *period_us) {
    return idle_engine(device, percent, period_us);
}

nvmlReturn_t nvmlDeviceGetEncoderStats(nvmlDevice_t device, unsigned int *sessions, unsigned int *fps,
                                       unsigned int *latency) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (sessions == NULL || fps == NULL || latency == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *sessions = *fps = *latency = 0;
    return NVML_SUCCESS;
}

static bool celsius(int gpu, uint64_t *temperature) {
    unsigned int fallback = IDLE_CELSIUS + (BUSY_CELSIUS - IDLE_CELSIUS) * sim_gpu_utilisation(gpu) / 100;

    return sim_setting(gpu, SIM_TEMPERATURE, fallback, temperature);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *temperature) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (temperature == NULL || sensor != NVML_TEMPERATURE_GPU)
        return NVML_ERROR_INVALID_ARGUMENT;
    uint64_t set;
    if (!celsius(gpu, &set))
        return NVML_ERROR_NOT_SUPPORTED;
    *temperature = (unsigned int)set;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (temperature == NULL || temperature->sensorType != NVML_TEMPERATURE_GPU)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (temperature->version != nvmlTemperature_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    uint64_t set;
    if (!celsius(gpu, &set))
        return NVML_ERROR_NOT_SUPPORTED;
    temperature->temperature = (int)set;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t threshold,
                                               unsigned int *temperature) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (temperature == NULL || threshold >= NVML_TEMPERATURE_THRESHOLD_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    switch (threshold) {
    case NVML_TEMPERATURE_THRESHOLD_SHUTDOWN:
        *temperature = SHUTDOWN_CELSIUS;
        return NVML_SUCCESS;
    case NVML_TEMPERATURE_THRESHOLD_SLOWDOWN:
        *temperature = SLOWDOWN_CELSIUS;
        return NVML_SUCCESS;
    case NVML_TEMPERATURE_THRESHOLD_MEM_MAX:
    case NVML_TEMPERATURE_THRESHOLD_GPU_MAX:
        *temperature = MAX_CELSIUS;
        return NVML_SUCCESS;
    default:
        return NVML_ERROR_NOT_SUPPORTED;
    }
}

struct clock {
    unsigned int idle_mhz, max_mhz;
};

static const struct clock clocks[NVML_CLOCK_COUNT] = {
    [NVML_CLOCK_GRAPHICS] = {345, 1980},
    [NVML_CLOCK_SM] = {345, 1980},
    [NVML_CLOCK_MEM] = {3201, 3201},
    [NVML_CLOCK_VIDEO] = {765, 1545},
};

/* Resolves device, clock type and result together: every clock query starts with it. */
static nvmlReturn_t resolve_clock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz, int *gpu) {
    nvmlReturn_t ret = device_resolve(device, gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    return mhz == NULL || type >= NVML_CLOCK_COUNT ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz) {
    int gpu;
    nvmlReturn_t ret = resolve_clock(device, type, mhz, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    uint64_t set = sim_gpu_utilisation(gpu) == 0 ? clocks[type].idle_mhz : clocks[type].max_mhz;
    bool supported = true;
    if (type == NVML_CLOCK_GRAPHICS || type == NVML_CLOCK_SM)
        supported = sim_setting(gpu, SIM_GRAPHICS_MHZ, set, &set);
    else if (type == NVML_CLOCK_MEM)
        supported = sim_setting(gpu, SIM_MEMORY_MHZ, set, &set);
    if (!supported)
        return NVML_ERROR_NOT_SUPPORTED;
    *mhz = (unsigned int)set;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz) {
    int gpu;
    nvmlReturn_t ret = resolve_clock(device, type, mhz, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    *mhz = clocks[type].max_mhz;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz) {
    return nvmlDeviceGetMaxClockInfo(device, type, mhz);
}

nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz) {
    return nvmlDeviceGetMaxClockInfo(device, type, mhz);
}

nvmlReturn_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz) {
    return nvmlDeviceGetMaxClockInfo(device, type, mhz);
}

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t id, unsigned int *mhz) {
    if (id >= NVML_CLOCK_ID_COUNT)
        return library_ready() == NVML_SUCCESS ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
    if (id == NVML_CLOCK_ID_CURRENT)
        return nvmlDeviceGetClockInfo(device, type, mhz);
    return nvmlDeviceGetMaxClockInfo(device, type, mhz);
}

/* The link carries what kernels are fed with; the simulator moves no data over it, so it is idle. */
nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter, unsigned int *kib_per_s) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (kib_per_s == NULL || counter >= NVML_PCIE_UTIL_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    *kib_per_s = 0;
    return NVML_SUCCESS;
}

#define RECOVERY_ACTION_SINCE_DRIVER 570

static nvmlReturn_t recovery_action(int gpu, unsigned int *action) {
    uint64_t set;

    if (atoi(sim_topology()->driver_version) < RECOVERY_ACTION_SINCE_DRIVER ||
        !sim_setting(gpu, SIM_RECOVERY_ACTION, NVML_GPU_RECOVERY_ACTION_NONE, &set))
        return NVML_ERROR_NOT_SUPPORTED;
    *action = (unsigned int)set;
    return NVML_SUCCESS;
}

/* What the field API can answer from the simulator; every other field answers for itself that it is not supported. */
static nvmlReturn_t field_value(int gpu, nvmlFieldValue_t *field) {
    field->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    switch (field->fieldId) {
    case NVML_FI_DEV_ECC_CURRENT:
    case NVML_FI_DEV_ECC_PENDING:
        field->value.uiVal = NVML_FEATURE_ENABLED;
        return NVML_SUCCESS;
    case NVML_FI_DEV_POWER_AVERAGE:
    case NVML_FI_DEV_POWER_INSTANT:
        return nvmlDeviceGetPowerUsage(device_handle(gpu), &field->value.uiVal);
    case NVML_FI_DEV_POWER_MIN_LIMIT:
        field->value.uiVal = MIN_POWER_MW;
        return NVML_SUCCESS;
    case NVML_FI_DEV_POWER_MAX_LIMIT:
    case NVML_FI_DEV_POWER_DEFAULT_LIMIT:
    case NVML_FI_DEV_POWER_CURRENT_LIMIT:
    case NVML_FI_DEV_POWER_REQUESTED_LIMIT:
        field->value.uiVal = MAX_POWER_MW;
        return NVML_SUCCESS;
    case NVML_FI_DEV_GET_GPU_RECOVERY_ACTION:
        return recovery_action(gpu, &field->value.uiVal);
    case NVML_FI_DEV_PCIE_REPLAY_COUNTER:
    case NVML_FI_DEV_NVLINK_LINK_COUNT:
        field->value.uiVal = 0;
        return NVML_SUCCESS;
    default:
        return NVML_ERROR_NOT_SUPPORTED;
    }
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (values == NULL || count <= 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) {
        values[i].timestamp = (long long)(wall_clock_us());
        values[i].latencyUsec = 0;
        values[i].nvmlReturn = field_value(gpu, &values[i]);
    }
    return NVML_SUCCESS;
}
