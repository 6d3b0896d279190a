/* Events: Xid and ECC errors that a test orders reach whoever registered for them. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "nvml_sim.h"

#define SUPPORTED_EVENTS                                                                                               \
    ((unsigned long long)(nvmlEventTypeXidCriticalError | nvmlEventTypeSingleBitEccError |                             \
                          nvmlEventTypeDoubleBitEccError))

struct nvmlEventSet_st {
    pthread_mutex_t mutex;
    unsigned int session; /* in which it was made: it ends with it */
    uint64_t after;       /* serial of the last event that was delivered or passed over */
    unsigned long long types[SIM_MAX_GPUS];
    uint64_t registered_at[SIM_MAX_GPUS]; /* serial of the newest event when the GPU was registered */
};

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    nvmlReturn_t ret = library_ready();

    if (ret != NVML_SUCCESS)
        return ret;
    if (set == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    struct nvmlEventSet_st *created = calloc(1, sizeof(*created));
    if (created == NULL)
        return NVML_ERROR_MEMORY;
    pthread_mutex_init(&created->mutex, NULL);
    created->session = session_number();
    set->handle = created;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    nvmlReturn_t ret = library_ready();

    if (ret != NVML_SUCCESS)
        return ret;
    if (set.handle == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    pthread_mutex_destroy(&set.handle->mutex);
    free(set.handle);
    return NVML_SUCCESS;
}

DEVICE_SETTING(nvmlDeviceGetSupportedEventTypes, unsigned long long, SIM_EVENT_TYPES, SUPPORTED_EVENTS)

/* A set of an earlier session has GPUs by numbers that may be others' now. */
static bool is_current(nvmlEventSet_t set) {
    return set.handle != NULL && set.handle->session == session_number();
}

/* Events from before the registration are not delivered. */
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
    int gpu;
    uint64_t supported;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (!is_current(set) || types == nvmlEventTypeNone)
        return NVML_ERROR_INVALID_ARGUMENT;
    /* Events are the whole GPU's. */
    if (gpu >= sim_gpu_count())
        return NVML_ERROR_NOT_SUPPORTED;
    if (!sim_setting(gpu, SIM_EVENT_TYPES, SUPPORTED_EVENTS, &supported) || (types & ~supported) != 0)
        return NVML_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&set.handle->mutex);
    if (set.handle->types[gpu] == nvmlEventTypeNone)
        set.handle->registered_at[gpu] = sim_event_last();
    set.handle->types[gpu] |= types;
    pthread_mutex_unlock(&set.handle->mutex);
    return NVML_SUCCESS;
}

/* Takes the event for this set, once: false if it is not for it or another waiter on the set had it. */
static bool take(struct nvmlEventSet_st *set, const struct sim_event *event) {
    bool taken = false;

    pthread_mutex_lock(&set->mutex);
    if (event->serial > set->after) {
        set->after = event->serial;
        taken =
            event->gpu >= 0 && (set->types[event->gpu] & event->type) && event->serial > set->registered_at[event->gpu];
    }
    pthread_mutex_unlock(&set->mutex);
    return taken;
}

static uint64_t after_of(struct nvmlEventSet_st *set) {
    pthread_mutex_lock(&set->mutex);
    uint64_t after = set->after;
    pthread_mutex_unlock(&set->mutex);
    return after;
}

static bool has_lost_gpu(struct nvmlEventSet_st *set) {
    bool lost = false;

    pthread_mutex_lock(&set->mutex);
    for (int gpu = 0; gpu < sim_gpu_count() && !lost; gpu++)
        lost = set->types[gpu] != nvmlEventTypeNone && sim_gpu_lost(gpu);
    pthread_mutex_unlock(&set->mutex);
    return lost;
}

/* Waits until an event for the set comes or `timeout_ms` is over. A set with a GPU that is lost delivers the events
 * that are there, the Xid of the loss among them, and then says that the GPU is lost. */
static nvmlReturn_t wait_for_event(struct nvmlEventSet_st *set, unsigned int timeout_ms, struct sim_event *event) {
    uint64_t deadline_ns = sim_now_ns() + (uint64_t)timeout_ms * 1000000;

    for (;;) {
        while (sim_event_wait(after_of(set), 0, event) == 0) {
            if (take(set, event))
                return NVML_SUCCESS;
        }
        nvmlReturn_t driver = driver_answers();
        if (driver != NVML_SUCCESS)
            return driver;
        if (has_lost_gpu(set))
            return NVML_ERROR_GPU_IS_LOST;
        uint64_t now_ns = sim_now_ns();
        if (now_ns >= deadline_ns)
            return NVML_ERROR_TIMEOUT;
        /* Rounded up, so that the last round does not spin. */
        uint64_t left_ms = (deadline_ns - now_ns + 999999) / 1000000;
        int ret = sim_event_wait(after_of(set), left_ms < UINT32_MAX ? (uint32_t)left_ms : UINT32_MAX - 1, event);
        if (ret != 0 && ret != -ETIMEDOUT)
            return NVML_ERROR_UNKNOWN;
        if (ret == 0 && take(set, event))
            return NVML_SUCCESS;
    }
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
    struct sim_event event;
    nvmlReturn_t ret = library_ready();

    if (ret != NVML_SUCCESS)
        return ret;
    if (!is_current(set) || data == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    /* Holds the state open while this thread waits in it, whoever else calls nvmlShutdown meanwhile. */
    if (sim_open() != 0)
        return NVML_ERROR_UNKNOWN;
    ret = wait_for_event(set.handle, timeout_ms, &event);
    sim_close();
    if (ret != NVML_SUCCESS)
        return ret;
    *data = (nvmlEventData_t){
        .device = device_handle(event.gpu),
        .eventType = event.type,
        .eventData = event.xid,
        .gpuInstanceId = event.gi,
        .computeInstanceId = event.ci,
    };
    return NVML_SUCCESS;
}

/* The first version's structure ends before the instance IDs. */
nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
    nvmlEventData_t full;
    nvmlReturn_t ret = nvmlEventSetWait_v2(set, data == NULL ? NULL : &full, timeout_ms);

    if (ret == NVML_SUCCESS)
        memcpy(data, &full, offsetof(nvmlEventData_t, gpuInstanceId));
    return ret;
}
