/* The processes that a process may see: the living ones of its claims, as the regions and the driver list them. */
#include "nvml/claim.h"
#include "system/mapped.h"

#include <stdlib.h>
#include <unistd.h>

/* Each slot of each region may be another process. Pages that are not written to take no memory. */
#define MEMBERS_MAX ((size_t)CLAIMS_MAX * REGION_SLOT_COUNT)

/* The index of a process ID in the list, or where to insert it. */
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

/* A process without memory and contexts is not on the GPU. A process with several slots (several claims, or the library
 * loaded twice) is listed once. Slots are not trusted: every process of the container can write to them. */
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

nvmlReturn_t nvml_read_members(nvmlDevice_t device, struct members *members) {
    struct claimed claimed;
    *members = (struct members){.size = MEMBERS_MAX * sizeof *members->list};
    nvmlReturn_t result = nvml_read_claims(device, &claimed);
    if (result != NVML_SUCCESS || claimed.gpu < 0)
        return result;
    members->limit = claimed.limit;
    members->list = mapped_new(members->size);
    if (members->list == NULL)
        return NVML_ERROR_MEMORY;
    for (unsigned i = (unsigned)claimed.gpu; i < claimed.claims->count; i++)
        if (claimed.claims->gpu[i] == claimed.gpu)
            region_each(&claimed.claims->regions[i], collect, members);
    return NVML_SUCCESS;
}

void nvml_free_members(struct members *members) {
    mapped_free(members->list, members->size);
}

const struct member *nvml_find_member(const struct members *members, unsigned int pid) {
    unsigned int place = place_of(members, pid);
    return place < members->count && members->list[place].pid == pid ? &members->list[place] : NULL;
}

nvmlReturn_t nvml_check_room(unsigned int *count, const void *array, unsigned int found) {
    bool fits = found == 0 || (array != NULL && *count >= found);
    *count = found;
    return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

/* --- the driver's lists --- */

/* The list may grow between two queries; after 8 the driver's error is returned. */
bool nvml_enlarge(struct answer *answer, nvmlReturn_t result) {
    if (result != NVML_ERROR_INSUFFICIENT_SIZE || answer->attempts++ == 8)
        return false;
    nvml_free_answer(answer);
    answer->count += 16;
    answer->size = answer->count * answer->entry;
    answer->list = mapped_new(answer->size);
    return answer->list != NULL;
}

void nvml_free_answer(struct answer *answer) {
    mapped_free(answer->list, answer->size);
    answer->list = NULL;
}

static bool in_initial_pid_namespace(void) {
    static const char initial[] = "pid:[4026531836]"; /* PROC_PID_INIT_INO of Linux */
    char name[sizeof initial + 16];
    ssize_t length = readlink("/proc/self/ns/pid", name, sizeof name);
    return length == (ssize_t)sizeof initial - 1 && memcmp(name, initial, sizeof initial - 1) == 0;
}

/*
 * Drivers since 530 list processes by their IDs in the caller's PID namespace, and omit processes outside of it. Older ones
 * list the host's IDs, and one that equals an ID of the caller's namespace would show another container's process.
 */
static bool driver_lists_pids(void) {
    char version[NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE];
    return REAL(nvmlSystemGetDriverVersion)(version, sizeof version) == NVML_SUCCESS && atoi(version) >= 530;
}

void nvml_keep_members(struct answer *answer, const struct members *members, bool listed) {
    unsigned int kept = 0;
    if (members->count > 0 && answer->count > 0 && (in_initial_pid_namespace() || (listed && driver_lists_pids()))) {
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
