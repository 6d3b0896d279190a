/* Faults that a test orders, and the events that tell of them. */
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "state_local.h"

int sim_fault_alloc(int gpu, uint32_t count, int cu_result) {
    int index = entry_of(gpu);

    if (sim_local == NULL || sim_local->state == NULL || (gpu != -1 && index < 0) || cu_result <= 0)
        return -EINVAL;
    atomic_store(gpu == -1 ? &sim_local->state->failing_allocs : &sim_local->state->gpus[index].failing_allocs,
                 (uint64_t)count << 32 | (uint32_t)cu_result);
    return 0;
}

static int take_fault(word *order) {
    uint64_t old = atomic_load_explicit(order, memory_order_relaxed);

    while (old >> 32 != 0) {
        if (atomic_compare_exchange_weak(order, &old, old - ((uint64_t)1 << 32)))
            return (int)(uint32_t)old;
    }
    return 0;
}

int sim_fault_alloc_take(int gpu) {
    int result, index = entry_of(gpu);

    if (index < 0)
        return 0;
    result = take_fault(&sim_local->state->gpus[index].failing_allocs);
    return result != 0 ? result : take_fault(&sim_local->state->failing_allocs);
}

int sim_fault_kernel(int gpu, uint32_t count, int cu_result) {
    int index = entry_of(gpu);

    if (index < 0 || cu_result <= 0)
        return -EINVAL;
    atomic_store(&sim_local->state->gpus[index].failing_kernels, (uint64_t)count << 32 | (uint32_t)cu_result);
    return 0;
}

int sim_fault_kernel_take(int gpu) {
    int index = entry_of(gpu);

    return index >= 0 ? take_fault(&sim_local->state->gpus[index].failing_kernels) : 0;
}

int sim_event_post(int gpu, enum sim_event_type type, struct sim_event posted) {
    struct state *st;
    struct state_event *event;
    uint64_t serial;

    if (!in_range(gpu))
        return -EINVAL;
    st = sim_local->state;
    serial = atomic_fetch_add(&st->event_serial, 1) + 1;
    event = &st->events[serial % EVENTS];
    atomic_store(&event->serial, 0);
    atomic_store(&event->gpu, (uint64_t)section_of(gpu));
    atomic_store(&event->type, type);
    atomic_store(&event->xid, posted.xid);
    atomic_store(&event->instance, (uint64_t)posted.gi << 32 | posted.ci);
    atomic_store(&event->time_ns, sim_now_ns());
    atomic_store(&event->serial, serial);
    atomic_fetch_add(&st->event_futex, 1);
    syscall(SYS_futex, &st->event_futex, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    return 0;
}

int sim_fault_xid(int gpu, uint64_t xid) {
    return sim_event_post(gpu, SIM_EVENT_XID,
                          (struct sim_event){.xid = xid, .gi = SIM_NO_INSTANCE, .ci = SIM_NO_INSTANCE});
}

/* A GPU falls off the bus with all its instances. */
static word *lost_word(int gpu) {
    return &sim_local->state->gpus[WHOLE_ENTRY(section_of(gpu))].lost;
}

int sim_fault_lost(int gpu, bool lost) {
    if (!in_range(gpu))
        return -EINVAL;
    if (atomic_exchange(lost_word(gpu), lost) == 0 && lost)
        sim_fault_xid(gpu, 79);
    return 0;
}

bool sim_gpu_lost(int gpu) {
    if (!in_range(gpu))
        return false;
    return atomic_load_explicit(lost_word(gpu), memory_order_relaxed) != 0 || sim_gpu_removed(gpu) ||
           mig_bound_gone(gpu);
}

void sim_fault_mig(enum sim_mig_act act, uint32_t count, int nvml_result) {
    if (sim_local != NULL && sim_local->state != NULL)
        atomic_store(&sim_local->state->mig_fault[act], (uint64_t)count << 32 | (uint32_t)nvml_result);
}

int sim_fault_mig_take(enum sim_mig_act act) {
    return sim_local != NULL && sim_local->state != NULL ? take_fault(&sim_local->state->mig_fault[act]) : 0;
}

void sim_fault_mig_delay(uint32_t ms) {
    if (sim_local != NULL && sim_local->state != NULL)
        atomic_store(&sim_local->state->mig_delay_ms, ms);
}

void sim_fault_nvml_absent(bool absent) {
    if (sim_local != NULL && sim_local->state != NULL)
        atomic_store(&sim_local->state->nvml_absent, absent);
}

bool sim_nvml_absent(void) {
    return sim_local != NULL && sim_local->state != NULL && atomic_load(&sim_local->state->nvml_absent) != 0;
}

void sim_fault_clear(void) {
    if (sim_local == NULL || sim_local->state == NULL)
        return;
    atomic_store(&sim_local->state->failing_allocs, 0);
    atomic_store(&sim_local->state->nvml_absent, 0);
    atomic_store(&sim_local->state->mig_delay_ms, 0);
    for (int act = 0; act < MIG_ACTS; act++)
        atomic_store(&sim_local->state->mig_fault[act], 0);
    for (int i = 0; i < entry_count(); i++) {
        atomic_store(&sim_local->state->gpus[i].failing_allocs, 0);
        atomic_store(&sim_local->state->gpus[i].failing_kernels, 0);
        atomic_store(&sim_local->state->gpus[i].lost, 0);
    }
    health_clear();
}

uint64_t sim_event_last(void) {
    return sim_local != NULL && sim_local->state != NULL ? atomic_load(&sim_local->state->event_serial) : 0;
}

static bool event_after(uint64_t after, struct sim_event *event) {
    struct state *st = sim_local->state;
    uint64_t last = atomic_load(&st->event_serial), serial = after + 1;

    if (last >= EVENTS && serial < last - EVENTS + 1)
        serial = last - EVENTS + 1;
    for (; serial <= last; serial++) {
        struct state_event *e = &st->events[serial % EVENTS];
        int index;

        if (atomic_load(&e->serial) != serial)
            continue;
        index = (int)atomic_load(&e->gpu);
        uint64_t instance = atomic_load(&e->instance);
        *event = (struct sim_event){
            .serial = serial,
            .gpu = -1,
            .type = (enum sim_event_type)atomic_load(&e->type),
            .xid = atomic_load(&e->xid),
            .time_ns = atomic_load(&e->time_ns),
            .gi = (uint32_t)(instance >> 32),
            .ci = (uint32_t)instance,
        };
        for (int gpu = 0; gpu < sim_local->visible_count; gpu++) {
            if (sim_local->visible[gpu] == index)
                event->gpu = gpu;
        }
        if (atomic_load(&e->serial) == serial)
            return true;
    }
    return false;
}

int sim_event_wait(uint64_t after, uint32_t timeout_ms, struct sim_event *event) {
    uint64_t end;

    if (sim_local == NULL || sim_local->state == NULL)
        return -EINVAL;
    end = sim_now_ns() + (uint64_t)timeout_ms * 1000000;
    for (;;) {
        uint32_t seen = atomic_load(&sim_local->state->event_futex);
        struct timespec left = {0, 0};
        uint64_t now;

        if (event_after(after, event))
            return 0;
        now = sim_now_ns();
        if (timeout_ms != UINT32_MAX) {
            if (now >= end)
                return -ETIMEDOUT;
            left = (struct timespec){(time_t)((end - now) / 1000000000), (long)((end - now) % 1000000000)};
        }
        syscall(SYS_futex, &sim_local->state->event_futex, FUTEX_WAIT, seen, timeout_ms == UINT32_MAX ? NULL : &left,
                NULL, 0);
    }
}
