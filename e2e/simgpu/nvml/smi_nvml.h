/* NVML as the simulated nvidia-smi has it. */
#ifndef SIMGPU_SMI_NVML_H
#define SIMGPU_SMI_NVML_H

#include <stdio.h>

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#define NVML_SONAME "libnvidia-ml.so.1"
#define MIB (1024ull * 1024ull)

/* The functions asked of NVML, by name, found with dlsym in whatever library the loader gives for the SONAME. */
#define NVML_FUNCTIONS(X)                                                                                              \
    X(nvmlInit_v2)                                                                                                     \
    X(nvmlShutdown)                                                                                                    \
    X(nvmlErrorString)                                                                                                 \
    X(nvmlSystemGetDriverVersion)                                                                                      \
    X(nvmlSystemGetCudaDriverVersion_v2)                                                                               \
    X(nvmlSystemGetProcessName)                                                                                        \
    X(nvmlDeviceGetCount_v2)                                                                                           \
    X(nvmlDeviceGetHandleByIndex_v2)                                                                                   \
    X(nvmlDeviceGetName)                                                                                               \
    X(nvmlDeviceGetUUID)                                                                                               \
    X(nvmlDeviceGetPciInfo_v3)                                                                                         \
    X(nvmlDeviceGetPersistenceMode)                                                                                    \
    X(nvmlDeviceGetDisplayActive)                                                                                      \
    X(nvmlDeviceGetTotalEccErrors)                                                                                     \
    X(nvmlDeviceGetTemperature)                                                                                        \
    X(nvmlDeviceGetPowerUsage)                                                                                         \
    X(nvmlDeviceGetPowerManagementLimit)                                                                               \
    X(nvmlDeviceGetMemoryInfo)                                                                                         \
    X(nvmlDeviceGetMemoryInfo_v2)                                                                                      \
    X(nvmlDeviceGetUtilizationRates)                                                                                   \
    X(nvmlDeviceGetMigMode)                                                                                            \
    X(nvmlDeviceSetMigMode)                                                                                            \
    X(nvmlDeviceGetMaxMigDeviceCount)                                                                                  \
    X(nvmlDeviceGetMigDeviceHandleByIndex)                                                                             \
    X(nvmlDeviceGetGpuInstanceId)                                                                                      \
    X(nvmlDeviceGetComputeInstanceId)                                                                                  \
    X(nvmlDeviceGetGpuInstanceProfileInfoV)                                                                            \
    X(nvmlDeviceGetGpuInstancePossiblePlacements_v2)                                                                   \
    X(nvmlDeviceGetGpuInstanceRemainingCapacity)                                                                       \
    X(nvmlDeviceCreateGpuInstance)                                                                                     \
    X(nvmlDeviceCreateGpuInstanceWithPlacement)                                                                        \
    X(nvmlDeviceGetGpuInstances)                                                                                       \
    X(nvmlDeviceGetGpuInstanceById)                                                                                    \
    X(nvmlGpuInstanceGetInfo)                                                                                          \
    X(nvmlGpuInstanceDestroy)                                                                                          \
    X(nvmlGpuInstanceGetComputeInstanceProfileInfo)                                                                    \
    X(nvmlGpuInstanceCreateComputeInstance)                                                                            \
    X(nvmlGpuInstanceGetComputeInstances)                                                                              \
    X(nvmlComputeInstanceGetInfo_v2)                                                                                   \
    X(nvmlComputeInstanceDestroy)                                                                                      \
    X(nvmlDeviceGetComputeRunningProcesses_v3)                                                                         \
    X(nvmlDeviceGetMPSComputeRunningProcesses_v3)                                                                      \
    X(nvmlDeviceGetComputeMode)

struct nvml {
    void *library;
#define MEMBER(name) __typeof__(&name) name;
    NVML_FUNCTIONS(MEMBER)
#undef MEMBER
};

/* Loads NVML and initialises it: 0, or an NVML error after a line on `out`. On success nvml_close must follow. */
int nvml_open(struct nvml *nvml, FILE *out);
void nvml_close(struct nvml *nvml);

#endif
