/* Whom a process may see: the living processes of its claims, in the regions and in what the driver answers. */
#include "nvml/claim.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Each slot of each region might be another process; what is not written to takes no memory. */
#define MEMBERS_MAX ((size_t)CLAIMS_MAX * REGION_SLOT_COUNT)

/* Where a process ID stands in the list, or would stand. */
static unsigned int place_of(const struct members *members, unsigned int pid) {
    unsigned int low = 0, high = members->count;
    while (low < high) {
        unsigned int middle = low + (high - low) / 2;
        if (members->list[middle].pid < pid)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* A process that has taken part and has no context is not on the GPU. One with slots in several claims, or with the
 * library loaded twice, is one process. A slot may say anything: everybody in the container can write to it. */
static void collect(int32_t pid, uint64_t pages, int32_t contexts, void *arg) {
    struct members *members = arg;
    if (pid <= 0 || (pages == 0 && contexts <= 0) || members->count == MEMBERS_MAX)
        return;
    unsigned int place = place_of(members, (unsigned int)pid);
    struct member *at = &members->list[place];
    if (place < members->count && at->pid == (unsigned int)pid) {
        at->bytes += pages << REGION_PAGE_SHIFT;
        return;
    }
    memmove(at + 1, at, (members->count - place) * sizeof *at);
    *at = (struct member){(unsigned int)pid, pages << REGION_PAGE_SHIFT};
    members->count++;
}

nvmlReturn_t nvml_read_members(const struct fraction *fraction, struct members *members) {
    *members = (struct members){.size = MEMBERS_MAX * sizeof *members->list};
    if (fraction->gpu < 0)
        return NVML_SUCCESS;
    members->list = nvml_take_room(members->size);
    if (members->list == NULL)
        return NVML_ERROR_MEMORY;
    for (unsigned i = (unsigned)fraction->gpu; i < fraction->claims->count; i++)
        if (fraction->claims->gpu[i] == fraction->gpu)
            region_each(&fraction->claims->regions[i], collect, members);
    return NVML_SUCCESS;
}

void nvml_drop_members(struct members *members) {
    nvml_drop_room(members->list, members->size);
}

const struct member *nvml_find_member(const struct members *members, unsigned int pid) {
    unsigned int place = place_of(members, pid);
    return place < members->count && members->list[place].pid == pid ? &members->list[place] : NULL;
}

nvmlReturn_t nvml_check_room(unsigned int *count, const void *array, unsigned int found) {
    nvmlReturn_t result = NVML_SUCCESS;
    if (found > 0 && (array == NULL || *count < found))
        result = NVML_ERROR_INSUFFICIENT_SIZE;
    *count = found;
    return result;
}

/* --- what the driver answers --- */

/* The list may grow between the question for its length and the list itself, but not for ever. */
bool nvml_enlarge(struct answer *answer, nvmlReturn_t result) {
    if (result != NVML_ERROR_INSUFFICIENT_SIZE || answer->attempts++ == 8)
        return false;
    nvml_drop_answer(answer);
    answer->count += 16;
    answer->size = answer->count * answer->entry;
    answer->list = nvml_take_room(answer->size);
    return answer->list != NULL;
}

void nvml_drop_answer(struct answer *answer) {
    nvml_drop_room(answer->list, answer->size);
    answer->list = NULL;
}

/*
 * Drivers since 530 name processes as the caller's pid namespace does, and leave out whom it does not know. Older ones
 * name them as the host does; a number of the host's that is also one of ours would show somebody else's work as ours.
 */
static bool knows_our_pids(void) {
    static const char initial[] = "pid:[4026531836]"; /* the host's own namespace has this number in every Linux */
    char name[sizeof initial + 16], version[NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE];
    ssize_t length = readlink("/proc/self/ns/pid", name, sizeof name);
    if (length == (ssize_t)sizeof initial - 1 && memcmp(name, initial, sizeof initial - 1) == 0)
        return true;
    return REAL(nvmlSystemGetDriverVersion)(version, sizeof version) == NVML_SUCCESS && atoi(version) >= 530;
}

void nvml_keep_members(struct answer *answer, const struct members *members) {
    unsigned int kept = 0;
    if (members->count > 0 && answer->count > 0 && knows_our_pids()) {
        for (unsigned int i = 0; i < answer->count; i++) {
            const char *entry = answer->list + i * answer->entry;
            unsigned int pid;
            memcpy(&pid, entry + answer->pid_offset, sizeof pid);
            if (nvml_find_member(members, pid) != NULL)
                memmove(answer->list + kept++ * answer->entry, entry, answer->entry);
        }
    }
    answer->count = kept;
}
