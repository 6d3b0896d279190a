#include "ipc_event.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda/work/engine.h"
#include "ipc.h"

/* Recordings are numbered: the last one, the last one that was reached, and who made the last one. */
enum { WORD_RECORDED, WORD_REACHED, WORD_RECORDER };

static void fill(uint64_t object, CUipcEventHandle *handle) {
    struct ipc_handle made;

    ipc_handle_make(&made, SIM_SHARED_EVENT, object);
    memset(handle, 0, sizeof(*handle));
    memcpy(handle, &made, sizeof(made));
}

CUresult ipc_event_new(CUdevice device, uint64_t *object, CUipcEventHandle *handle) {
    REQUIRE(sim_shared_new(SIM_SHARED_EVENT, driver->gpus[device], 0, object) == 0, CUDA_ERROR_OUT_OF_MEMORY);
    fill(*object, handle);
    return CUDA_SUCCESS;
}

CUresult ipc_event_handle(uint64_t object, CUipcEventHandle *handle) {
    fill(object, handle);
    return CUDA_SUCCESS;
}

CUresult ipc_event_open(const CUipcEventHandle *handle, uint64_t *object) {
    struct ipc_handle read;

    REQUIRE(ipc_handle_read(&read, handle, SIM_SHARED_EVENT), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(!ipc_handle_own(&read), CUDA_ERROR_INVALID_CONTEXT);
    REQUIRE(sim_shared_open(read.object, SIM_SHARED_EVENT) == 0, CUDA_ERROR_INVALID_HANDLE);
    *object = read.object;
    return CUDA_SUCCESS;
}

struct recording {
    uint64_t object; /* with a hold */
    uint64_t number;
};

static void reached(void *arg) {
    struct recording *recording = arg;
    _Atomic uint64_t *word = sim_shared_about(recording->object).words + WORD_REACHED;
    uint64_t before = atomic_load(word);

    while (before < recording->number && !atomic_compare_exchange_weak(word, &before, recording->number)) {
    }
    sim_shared_drop(recording->object);
    free(recording);
}

CUresult ipc_event_recorded(uint64_t object, CUdevice device, uint64_t mark) {
    struct recording *recording = malloc(sizeof(*recording));
    _Atomic uint64_t *words = sim_shared_about(object).words;

    REQUIRE(recording != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    sim_shared_open(object, SIM_SHARED_EVENT);
    atomic_store(&words[WORD_RECORDER], sim_shared_process());
    *recording = (struct recording){object, atomic_fetch_add(&words[WORD_RECORDED], 1) + 1};
    if (engine_done(device, mark) || !engine_call(device, mark, reached, recording)) {
        engine_wait(device, mark);
        reached(recording);
    }
    return CUDA_SUCCESS;
}

static bool done(_Atomic uint64_t *words, uint64_t number) {
    return atomic_load(&words[WORD_REACHED]) >= number || !sim_shared_process_alive(atomic_load(&words[WORD_RECORDER]));
}

bool ipc_event_done(uint64_t object) {
    _Atomic uint64_t *words = sim_shared_about(object).words;

    return done(words, atomic_load(&words[WORD_RECORDED]));
}

/* Another process's GPU work wakes nobody here. */
void ipc_event_wait(uint64_t object) {
    const struct timespec pause = {0, 200000};
    _Atomic uint64_t *words = sim_shared_about(object).words;
    uint64_t number = atomic_load(&words[WORD_RECORDED]);

    while (!done(words, number))
        nanosleep(&pause, NULL);
}
