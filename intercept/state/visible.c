#include "state/visible.h"

#include "driver/cuda_real.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VARIABLE "CUDA_VISIBLE_DEVICES"

/* Whether a list of visible devices has the only GPU there is: its number is 0. It ends at the first entry that names no GPU. */
static bool selects(const char *list, const char *gpu) {
    if (list == NULL)
        return true;
    size_t length = strcspn(list, ",");
    if (length == 0)
        return false;
    if (strspn(list, "0") == length)
        return true;
    return strncmp(list, gpu, length) == 0; /* the beginning of its UUID */
}

static char **find(void) {
    for (char **entry = environ; entry != NULL && *entry != NULL; entry++)
        if (strncmp(*entry, VARIABLE "=", sizeof VARIABLE) == 0)
            return entry;
    return NULL;
}

/* Calls the driver while the variable's entry is another. Other threads may read and change the environment meanwhile: one that
 * reads the variable gets either value. */
static CUresult init_with(char *entry, unsigned int flags) {
    char **at = find();
    if (at == NULL) {
        setenv(VARIABLE, entry + sizeof VARIABLE, 1);
        CUresult result = REAL(cuInit)(flags);
        unsetenv(VARIABLE);
        return result;
    }
    char *before = *at;
    *at = entry;
    CUresult result = REAL(cuInit)(flags);
    at = find();
    if (at != NULL && *at == entry)
        *at = before;
    return result;
}

CUresult visible_init(struct process *process, unsigned int flags) {
    const char *gpu = claims_visible_gpu();
    if (gpu == NULL || atomic_load_explicit(&process->started, memory_order_acquire))
        return REAL(cuInit)(flags);
    /* Other threads may keep what they read. */
    static char chosen[sizeof VARIABLE + REGION_GPU_UUID_SIZE], none[] = VARIABLE "=";
    reentrant_take(&process->starting);
    snprintf(chosen, sizeof chosen, VARIABLE "=%s", gpu);
    CUresult result = init_with(selects(getenv(VARIABLE), gpu) ? chosen : none, flags);
    if (result == CUDA_SUCCESS)
        atomic_store_explicit(&process->started, true, memory_order_release);
    reentrant_give(&process->starting);
    return result;
}
