#include "visible.h"

#include <stdlib.h>
#include <string.h>

#include "mig/mig.h"
#include "state.h"

int visible_find(const char *entry, int length, const int *gpus, int count) {
    char *end;
    long index;
    int found = -1;

    if (length > 4 && (strncmp(entry, "GPU-", 4) == 0 || strncmp(entry, "MIG-", 4) == 0)) {
        for (int i = 0; i < count; i++) {
            if (sim_gpu(gpus[i]) != NULL && strncmp(sim_gpu(gpus[i])->uuid, entry, (size_t)length) == 0) {
                if (found >= 0)
                    return -1; /* ambiguous */
                found = i;
            }
        }
        return found;
    }
    index = strtol(entry, &end, 10);
    return end == entry + length && length > 0 && index >= 0 && index < count ? (int)index : -1;
}

static int choose(const char *list, int *gpus, int count) {
    int chosen[SIM_MAX_INDICES], chosen_count = 0;

    for (const char *entry = list;; entry++) {
        int length = (int)strcspn(entry, ",");
        int place = visible_find(entry, length, gpus, count);

        if (place < 0)
            break;
        for (int i = 0; i < chosen_count; i++) {
            if (chosen[i] == gpus[place])
                return 0;
        }
        chosen[chosen_count++] = gpus[place];
        entry += length;
        if (*entry == '\0')
            break;
    }
    memcpy(gpus, chosen, (size_t)chosen_count * sizeof(*gpus));
    return chosen_count;
}

/* A process has at most one MIG instance, and then no other GPU: the first that is named, or that there is. */
static int only_one_mig(int *gpus, int count) {
    for (int i = 0; i < count; i++) {
        if (gpus[i] >= sim_gpu_count()) {
            gpus[0] = gpus[i];
            return 1;
        }
    }
    return count;
}

int visible_apply(const char *list, int *gpus, int count) {
    return only_one_mig(gpus, list != NULL ? choose(list, gpus, count) : count);
}

int visible_all(int *gpus) {
    int count = 0;

    for (int i = 0; i < sim_gpu_count(); i++) {
        if (!sim_gpu_lost(i) && !sim_mig_on(i))
            gpus[count++] = i;
    }
    for (int i = 0; i < sim_gpu_count(); i++) {
        if (!sim_gpu_lost(i))
            count += sim_mig_devices(i, gpus + count);
    }
    return count;
}
