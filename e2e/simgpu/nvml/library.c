/* The library as a whole: initialisation, errors, and what NVML says of the driver rather than of a GPU. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "nvml_sim.h"

static pthread_mutex_t init_mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned int init_count;

/* sim_driver_loads when the session was begun, and how many were begun. */
static uint64_t session_loads;
static unsigned int sessions;

unsigned int session_number(void) {
    return __atomic_load_n(&sessions, __ATOMIC_RELAXED);
}

/* The driver cannot be unloaded under a session; but GPUs are reset and rebound under one, and containers keep theirs.
 * What such a session hears is written nowhere; that it is never heard by a new one, is. */
nvmlReturn_t driver_answers(void) {
    uint64_t loads = sim_driver_loads();

    if (loads % 2 != 0)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    return loads == __atomic_load_n(&session_loads, __ATOMIC_RELAXED) ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

nvmlReturn_t library_ready(void) {
    nvmlReturn_t ret;

    if (__atomic_load_n(&init_count, __ATOMIC_ACQUIRE) == 0)
        return NVML_ERROR_UNINITIALIZED;
    ret = driver_answers();
    return ret != NVML_SUCCESS ? ret : ordered_error(-1);
}

nvmlReturn_t copy_string(char *buffer, unsigned int length, const char *string) {
    size_t size = strlen(string) + 1;

    if (buffer == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (length < size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(buffer, string, size);
    return NVML_SUCCESS;
}

uint64_t wall_clock_us(void) {
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* Why there can be no session with the driver now; with NVML_SUCCESS it has begun. */
static nvmlReturn_t driver_refuses(void) {
    uint64_t loads = sim_driver_loads();

    if (sim_nvml_absent() || loads % 2 != 0)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    if (sim_driver_mismatched())
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    __atomic_store_n(&session_loads, loads, __ATOMIC_RELAXED);
    __atomic_add_fetch(&sessions, 1, __ATOMIC_RELAXED);
    return ordered_error(-1);
}

/* Opens the simulated node: its topology and device nodes are looked at afresh by every first nvmlInit, as a driver
 * that is loaded later is found later. */
static nvmlReturn_t attach_to_driver(void) {
    switch (-sim_open()) {
    case 0:
        break;
    case ENODEV:
    case ENOENT:
        return NVML_ERROR_DRIVER_NOT_LOADED;
    case EACCES:
    case EPERM:
        return NVML_ERROR_NO_PERMISSION;
    case ESTALE:
    case EPROTO:
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    default:
        return NVML_ERROR_UNKNOWN;
    }
    nvmlReturn_t ret = driver_refuses();
    if (ret != NVML_SUCCESS)
        sim_close();
    else
        sim_manages();
    return ret;
}

/* Initialisation is counted: the library is initialised until as many nvmlShutdown calls were made. */
static nvmlReturn_t initialise(void) {
    nvmlReturn_t ret = NVML_SUCCESS;

    pthread_mutex_lock(&init_mutex);
    if (init_count == 0)
        ret = attach_to_driver();
    if (ret == NVML_SUCCESS)
        __atomic_store_n(&init_count, init_count + 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&init_mutex);
    return ret;
}

nvmlReturn_t nvmlInit(void) {
    return initialise();
}

nvmlReturn_t nvmlInit_v2(void) {
    return initialise();
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    if (flags & ~(unsigned int)(NVML_INIT_FLAG_NO_GPUS | NVML_INIT_FLAG_NO_ATTACH | NVML_INIT_FLAG_FORCE_INIT))
        return NVML_ERROR_INVALID_ARGUMENT;
    return initialise();
}

nvmlReturn_t nvmlShutdown(void) {
    nvmlReturn_t ret = NVML_ERROR_UNINITIALIZED;

    pthread_mutex_lock(&init_mutex);
    if (init_count > 0) {
        __atomic_store_n(&init_count, init_count - 1, __ATOMIC_RELEASE);
        if (init_count == 0)
            sim_close();
        ret = NVML_SUCCESS;
    }
    pthread_mutex_unlock(&init_mutex);
    return ret;
}

static const char *const error_strings[] = {
    [NVML_SUCCESS] = "Success",
    [NVML_ERROR_UNINITIALIZED] = "Uninitialized",
    [NVML_ERROR_INVALID_ARGUMENT] = "Invalid Argument",
    [NVML_ERROR_NOT_SUPPORTED] = "Not Supported",
    [NVML_ERROR_NO_PERMISSION] = "Insufficient Permissions",
    [NVML_ERROR_ALREADY_INITIALIZED] = "Already Initialized",
    [NVML_ERROR_NOT_FOUND] = "Not Found",
    [NVML_ERROR_INSUFFICIENT_SIZE] = "Insufficient Size",
    [NVML_ERROR_INSUFFICIENT_POWER] = "Insufficient External Power",
    [NVML_ERROR_DRIVER_NOT_LOADED] = "Driver Not Loaded",
    [NVML_ERROR_TIMEOUT] = "Timeout",
    [NVML_ERROR_IRQ_ISSUE] = "Interrupt Request Issue",
    [NVML_ERROR_LIBRARY_NOT_FOUND] = "NVML Shared Library Not Found",
    [NVML_ERROR_FUNCTION_NOT_FOUND] = "Function Not Found",
    [NVML_ERROR_CORRUPTED_INFOROM] = "Corrupted infoROM",
    [NVML_ERROR_GPU_IS_LOST] = "GPU is lost",
    [NVML_ERROR_RESET_REQUIRED] = "GPU requires reset",
    [NVML_ERROR_OPERATING_SYSTEM] = "GPU access blocked by the operating system",
    [NVML_ERROR_LIB_RM_VERSION_MISMATCH] = "Driver/library version mismatch",
    [NVML_ERROR_IN_USE] = "In use by another client",
    [NVML_ERROR_MEMORY] = "Insufficient Memory",
    [NVML_ERROR_NO_DATA] = "No data",
    [NVML_ERROR_VGPU_ECC_NOT_SUPPORTED] = "vGPU is not supported with ECC enabled",
    [NVML_ERROR_INSUFFICIENT_RESOURCES] = "Insufficient resources",
    [NVML_ERROR_FREQ_NOT_SUPPORTED] = "Frequency not supported",
    [NVML_ERROR_ARGUMENT_VERSION_MISMATCH] = "Argument version mismatch",
    [NVML_ERROR_DEPRECATED] = "The requested functionality has been deprecated",
    [NVML_ERROR_NOT_READY] = "System is not in ready state",
    [NVML_ERROR_GPU_NOT_FOUND] = "No GPUs were found",
    [NVML_ERROR_INVALID_STATE] = "Invalid State",
    [NVML_ERROR_RESET_TYPE_NOT_SUPPORTED] = "Reset type not supported",
};

const char *nvmlErrorString(nvmlReturn_t result) {
    size_t index = (size_t)result;

    if (index < sizeof(error_strings) / sizeof(error_strings[0]) && error_strings[index] != NULL)
        return error_strings[index];
    return "Unknown Error";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    nvmlReturn_t ret = library_ready();

    return ret != NVML_SUCCESS ? ret : copy_string(version, length, sim_topology()->driver_version);
}

/* NVML's version is the driver's behind the major version of CUDA. */
nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
    char string[NVML_SYSTEM_NVML_VERSION_BUFFER_SIZE];
    nvmlReturn_t ret = library_ready();

    if (ret != NVML_SUCCESS)
        return ret;
    snprintf(string, sizeof(string), "%d.%s", sim_topology()->cuda_version / 1000, sim_topology()->driver_version);
    return copy_string(version, length, string);
}

/* The driver answers this one without initialisation too: its callers ask before they choose a CUDA runtime. */
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    if (version == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (sim_open() != 0)
        return NVML_ERROR_LIBRARY_NOT_FOUND;
    *version = sim_topology()->cuda_version;
    sim_close();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

nvmlReturn_t nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_t *info, unsigned int length) {
    char branch[NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE];
    nvmlReturn_t ret = library_ready();

    if (ret != NVML_SUCCESS)
        return ret;
    if (info == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != nvmlSystemDriverBranchInfo_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    snprintf(branch, sizeof(branch), "r%.3s_00", sim_topology()->driver_version);
    if (length > sizeof(info->branch))
        length = sizeof(info->branch);
    return copy_string(info->branch, length, branch);
}

/* The name is cut to the buffer, as the driver does, and ends in NUL. */
nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length) {
    char path[64];
    char command[4096];
    nvmlReturn_t ret = library_ready();

    if (ret != NVML_SUCCESS)
        return ret;
    if (name == NULL || length == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(path, sizeof(path), "/proc/%u/cmdline", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NVML_ERROR_NOT_FOUND;
    ssize_t size = read(fd, command, sizeof(command) - 1);
    close(fd);
    if (size <= 0)
        return NVML_ERROR_NOT_FOUND;
    command[size] = '\0';
    snprintf(name, length, "%s", command);
    return NVML_SUCCESS;
}

/* Units are S-class racks; a node has none. */
nvmlReturn_t nvmlUnitGetCount(unsigned int *count) {
    nvmlReturn_t ret = library_ready();

    if (ret != NVML_SUCCESS)
        return ret;
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned int *count) {
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGetExcludedDeviceInfoByIndex(unsigned int index, nvmlExcludedDeviceInfo_t *info) {
    (void)index;
    (void)info;
    return NVML_ERROR_INVALID_ARGUMENT;
}
