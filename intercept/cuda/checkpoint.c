/*
 * Checkpoints of processes. The memory of a process that the driver has moved to the host stays charged, and so the
 * driver may bring it back to the GPU where it was. It must not come back on another GPU, where nothing of it is
 * charged.
 *
 * Options that came after CUDA_SHADOWED_UNTIL are refused: of those that are announced, some map the memory of one
 * process in another.
 *
 * Source: "CUDA Checkpointing" in the CUDA driver API's documentation.
 */
#include "driver/cuda_real.h"
#include "system/explain.h"

#include <string.h>

static CUresult refuse(const char *what) {
    explain(CAUSE_CHECKPOINT, "%s is not supported: the memory would not count toward the limit", what);
    return CUDA_ERROR_NOT_SUPPORTED;
}

static bool all_zero(const void *bytes, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (((const char *)bytes)[i] != 0)
            return false;
    return true;
}

static bool moves(const CUcheckpointRestoreArgs *wanted) {
    for (unsigned i = 0; wanted->gpuPairs != NULL && i < wanted->gpuPairsCount; i++)
        if (memcmp(&wanted->gpuPairs[i].oldUuid, &wanted->gpuPairs[i].newUuid, sizeof(CUuuid)) != 0)
            return true;
    return false;
}

CUresult cuCheckpointProcessCheckpoint(int process, CUcheckpointCheckpointArgs *wanted) {
    if (wanted != NULL && !all_zero(wanted, sizeof *wanted))
        return refuse("cuCheckpointProcessCheckpoint with options");
    return REAL(cuCheckpointProcessCheckpoint)(process, wanted);
}

CUresult cuCheckpointProcessRestore(int process, CUcheckpointRestoreArgs *wanted) {
    if (wanted != NULL && moves(wanted))
        return refuse("cuCheckpointProcessRestore onto another GPU");
    if (wanted != NULL && !all_zero(wanted->reserved, sizeof wanted->reserved))
        return refuse("cuCheckpointProcessRestore with options other than GPUs");
    return REAL(cuCheckpointProcessRestore)(process, wanted);
}
