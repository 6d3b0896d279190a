#include "governor/queues.h"

#include "driver/cuda_real.h"
#include "governor/clock.h"
#include "governor/contexts.h"
#include "governor/page.h"
#include "state/gpus.h"

#include <string.h>

#define SLOTS_BITS 10
#define SLOTS (1u << SLOTS_BITS)
#define MARKS 8
#define MARKS_PER_METER 4
#define EVERY_MOST 256
#define PATIENCE 5
/* What a launch takes of which nothing is known: as much as may be outstanding, so that no second one is added to a long one. */
#define UNKNOWN_NS (2 * NS_PER_MS)

/* An event behind some launches. Their work began after `begun_ns` and was not done at `pending_ns`. */
struct mark {
    CUevent event;
    uint32_t launches;
    uint64_t begun_ns, recorded_ns;
    uint64_t pending_ns; /* 0: it was never queried and not done */
};

struct slot {
    struct queue queue;
    CUcontext context;
    CUstream stream;        /* as the agent's thread names it */
    uint64_t launch_ns;     /* what a launch takes, estimated */
    bool known;             /* it took no longer than twice that the last time, so the estimate is good */
    uint64_t last_ns;       /* when the last mark was recorded */
    uint64_t after, before; /* the last mark that is done was so between these */
    unsigned first, count;  /* of the marks that are not done */
    struct mark marks[MARKS];
    CUevent drain;
    bool draining;      /* until `drain` is done */
    uint32_t unmarked;  /* launches between the last mark and `drain` */
    uint64_t drains_ns; /* when `drain` was recorded */
    CUevent wait;       /* after the last wait for memory or a semaphore */
    bool waits;         /* until `wait` is done */
    bool orphan;        /* the stream is destroyed: the slot is freed when its work is done */
};

/* Keys of slots. A stream's key is its handle, that of a default stream is its context's, with its own number added. */
enum { KEY_FREE = 0, KEY_FORMER = 1, KEY_ORPHAN = 2 };

static struct {
    struct lock lock;
    struct process *process;
    int gpus[DEVICES_MAX]; /* by device: index in the page + 1; 0: none */
    _Atomic uintptr_t keys[SLOTS];
    struct slot slots[SLOTS];
} queues;

int queues_index(const struct process *process, int gpu) {
    int index = 0;
    for (int i = 0; i < gpu; i++)
        index += process->claims.gpu[i] == i;
    return index < GOVERNOR_GPUS_MAX ? index : NO_GPU;
}

void queues_start(struct process *process) {
    int count = 0, gpu;
    queues.process = process;
    REAL(cuDeviceGetCount)(&count);
    for (CUdevice device = 0; device < count && device < DEVICES_MAX; device++)
        if (gpus_find(process, device, &gpu) == CUDA_SUCCESS && gpu != NO_CLAIM)
            queues.gpus[device] = queues_index(process, gpu) + 1;
}

/* --- slots -------------------------------------------------------------------------------------------------------- */

static unsigned start_of(uintptr_t key) {
    return (unsigned)((uint64_t)(key >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> (64 - SLOTS_BITS));
}

static struct slot *find(uintptr_t key) {
    for (unsigned i = 0; i < SLOTS; i++) {
        unsigned at = (start_of(key) + i) % SLOTS;
        uintptr_t other = atomic_load_explicit(&queues.keys[at], memory_order_acquire);
        if (other == key)
            return &queues.slots[at];
        if (other == KEY_FREE)
            return NULL;
    }
    return NULL;
}

static void set_key(struct slot *slot, uintptr_t key) {
    atomic_store_explicit(&queues.keys[slot - queues.slots], key, memory_order_release);
}

static bool is_live(const struct slot *slot) {
    uintptr_t key = atomic_load_explicit(&queues.keys[slot - queues.slots], memory_order_relaxed);
    return key != KEY_FREE && key != KEY_FORMER;
}

/* Loops over the slots of a GPU. */
#define EACH_SLOT(slot, index)                                                                                         \
    for (struct slot *slot = queues.slots; slot < queues.slots + SLOTS; slot++)                                        \
        if (is_live(slot) && slot->queue.gpu == (index))

static struct slot *room_for(uintptr_t key) {
    for (unsigned i = 0; i < SLOTS; i++) {
        struct slot *slot = &queues.slots[(start_of(key) + i) % SLOTS];
        if (!is_live(slot))
            return slot;
    }
    return NULL;
}

/* Under the lock. What a launch in a new queue is likely to take: as long as those of the others that are known. */
static uint64_t likely_ns(int gpu) {
    uint64_t longest = 0;
    EACH_SLOT(slot, gpu)
    if (slot->known && slot->launch_ns > longest)
        longest = slot->launch_ns;
    return longest > 0 ? longest : UNKNOWN_NS;
}

/* Under the lock. NULL if there is no room. */
static struct slot *add(uintptr_t key, CUcontext context, CUstream stream, int gpu) {
    struct slot *known = find(key), *slot = known != NULL ? NULL : room_for(key);
    if (slot == NULL)
        return known;
    memset(slot, 0, sizeof *slot);
    slot->context = context;
    slot->stream = stream;
    slot->queue.gpu = gpu;
    slot->queue.every = 1;
    slot->launch_ns = likely_ns(gpu);
    slot->last_ns = clock_now();
    set_key(slot, key);
    return slot;
}

/* --- the driver --------------------------------------------------------------------------------------------------- */

/* Makes this thread's calls harmless to a capture in progress. */
static void relax(CUstreamCaptureMode *mode) {
    *mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    REAL(cuThreadExchangeStreamCaptureMode)(mode);
}

static void lock_relaxed(CUstreamCaptureMode *mode) {
    relax(mode);
    lock_take(&queues.lock);
}

static void unlock_relaxed(CUstreamCaptureMode *mode) {
    lock_give(&queues.lock);
    REAL(cuThreadExchangeStreamCaptureMode)(mode);
}

/* Under the lock, and in the relaxed mode, as all below. False if the context is being ended, or has ended: then the slot is
 * free. */
static bool enter(struct slot *slot, struct gate **gate) {
    *gate = contexts_hold(queues.process, slot->context, slot->queue.gpu);
    if (*gate == NULL)
        return false;
    if (REAL(cuCtxPushCurrent_v2)(slot->context) == CUDA_SUCCESS)
        return true;
    set_key(slot, KEY_FORMER);
    contexts_leave(gate);
    return false;
}

static void leave(struct gate **gate) {
    CUcontext context;
    REAL(cuCtxPopCurrent_v2)(&context);
    contexts_leave(gate);
}

bool queues_is_capturing(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Records an event, which it creates first if need be. */
static bool record(CUevent *event, CUstream stream) {
    if (queues_is_capturing(stream))
        return false;
    if (*event == NULL && REAL(cuEventCreate)(event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        return false;
    return REAL(cuEventRecord)(*event, stream) == CUDA_SUCCESS;
}

static bool is_pending(CUevent event) {
    return REAL(cuEventQuery)(event) == CUDA_ERROR_NOT_READY;
}

/* --- marks -------------------------------------------------------------------------------------------------------- */

static void mark(struct slot *slot, CUstream stream) {
    struct mark *mark = &slot->marks[(slot->first + slot->count) % MARKS];
    struct gate *gate;
    uint32_t launches = slot->count < MARKS ? atomic_exchange(&slot->queue.launches, 0) : 0;
    if (launches == 0 || !enter(slot, &gate))
        return;
    if (record(&mark->event, stream)) {
        mark->launches = launches;
        mark->begun_ns = slot->last_ns;
        mark->recorded_ns = slot->last_ns = clock_now();
        mark->pending_ns = 0;
        slot->count++;
    }
    leave(&gate);
}

static uint64_t later(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* A mark was found done. What is known of how long its launches took bounds the estimate from both sides: they began after
 * the mark before was last seen to be pending, and when they did not, at the latest when that was seen to be done. */
static void learn(struct slot *slot, const struct mark *mark, uint64_t now) {
    uint64_t most = (now - later(mark->begun_ns, slot->after)) / mark->launches;
    uint64_t begun = later(mark->recorded_ns, slot->before);
    uint64_t least = mark->pending_ns > begun ? (mark->pending_ns - begun) / mark->launches : 0;
    uint64_t meter = atomic_load_explicit(&governor_page.page.gpus[slot->queue.gpu].meter_ns, memory_order_relaxed);
    slot->launch_ns = clamp_ns(slot->launch_ns, least, later(most, 1));
    slot->known = most <= 2 * slot->launch_ns;
    slot->after = later(slot->after, mark->pending_ns);
    slot->before = now;
    uint64_t every = meter / MARKS_PER_METER / later(slot->launch_ns, 1);
    atomic_store_explicit(&slot->queue.every, (uint32_t)clamp_ns(every, 1, EVERY_MOST), memory_order_relaxed);
}

/* A mark that is pending was so at a time before the query, and one that is done at a time after it: this thread may lose its
 * processor in between. */
static void settle_marks(struct slot *slot) {
    uint64_t now = clock_now();
    for (; slot->count > 0; slot->first = (slot->first + 1) % MARKS, slot->count--) {
        struct mark *mark = &slot->marks[slot->first];
        if (is_pending(mark->event)) {
            mark->pending_ns = now;
            return;
        }
        learn(slot, mark, clock_now());
    }
}

static void destroy_events(struct slot *slot) {
    if (slot->drain != NULL)
        REAL(cuEventDestroy_v2)(slot->drain);
    if (slot->wait != NULL)
        REAL(cuEventDestroy_v2)(slot->wait);
    for (unsigned i = 0; i < MARKS; i++)
        if (slot->marks[i].event != NULL)
            REAL(cuEventDestroy_v2)(slot->marks[i].event);
}

/* Frees an orphan once its work is done. */
static void settle(struct slot *slot) {
    struct gate *gate;
    if ((slot->count == 0 && !slot->draining) || !enter(slot, &gate))
        return;
    settle_marks(slot);
    slot->draining = slot->draining && is_pending(slot->drain);
    slot->unmarked = slot->draining ? slot->unmarked : 0;
    if (slot->orphan && !slot->draining) {
        destroy_events(slot);
        set_key(slot, KEY_FORMER);
    }
    leave(&gate);
}

/* How long a queue's work takes, estimated. */
static uint64_t work_of(const struct slot *slot) {
    uint64_t launches = atomic_load_explicit(&slot->queue.launches, memory_order_relaxed) + slot->unmarked;
    for (unsigned i = 0; i < slot->count; i++)
        launches += slot->marks[(slot->first + i) % MARKS].launches;
    return launches * slot->launch_ns;
}

void queues_mark(struct queue *queue, CUstream stream) {
    CUstreamCaptureMode mode;
    struct slot *slot = (struct slot *)queue; /* its first member */
    lock_relaxed(&mode);
    settle(slot);
    mark(slot, stream);
    unlock_relaxed(&mode);
}

/* A GPU's outstanding work. */
struct outstanding {
    uint64_t ns;       /* estimated */
    uint64_t first_ns; /* of what is done first */
    uint64_t begun_ns; /* when that began, at the latest */
    unsigned marks;
    bool draining, unknown;
};

/* Under the lock. */
static struct outstanding settle_all(int gpu) {
    struct outstanding work = {0};
    EACH_SLOT(slot, gpu) {
        settle(slot);
        const struct mark *first = &slot->marks[slot->first];
        work.begun_ns = later(work.begun_ns, slot->before);
        work.draining = work.draining || slot->draining;
        work.marks += slot->count;
        if (slot->count == 0 && !slot->draining)
            continue;
        work.unknown = work.unknown || !slot->known;
        work.ns += work_of(slot);
        work.first_ns = (slot->count > 0 ? first->launches : slot->unmarked) * slot->launch_ns;
        work.begun_ns = later(work.begun_ns, slot->count > 0 ? first->recorded_ns : slot->drains_ns);
    }
    return work;
}

/* Of the only work that is outstanding, what has passed since it began at the latest is done, so that the next long kernel is
 * launched before this one ends. If it takes longer than estimated, it may take as long again. */
uint64_t queues_settle(int gpu) {
    CUstreamCaptureMode mode;
    lock_relaxed(&mode);
    struct outstanding work = settle_all(gpu);
    unlock_relaxed(&mode);
    uint64_t passed = clock_now() - work.begun_ns;
    return !work.unknown && work.marks == 1 && passed < work.first_ns ? work.ns - passed : work.ns;
}

uint64_t queues_patience(int gpu) {
    uint64_t longest = 0;
    lock_take(&queues.lock);
    EACH_SLOT(slot, gpu)
    for (unsigned i = 0; i < slot->count; i++)
        longest = later(longest, slot->marks[(slot->first + i) % MARKS].launches * slot->launch_ns);
    lock_give(&queues.lock);
    return PATIENCE * longest;
}

bool queues_idle(int gpu) {
    CUstreamCaptureMode mode;
    bool idle = true;
    lock_relaxed(&mode);
    EACH_SLOT(slot, gpu) {
        settle(slot);
        if (!slot->orphan)
            mark(slot, slot->stream);
        idle = idle && slot->count == 0 && !slot->draining;
    }
    unlock_relaxed(&mode);
    return idle;
}

static bool is_empty(struct slot *slot) {
    struct gate *gate;
    if (slot->orphan)
        return !slot->draining;
    if ((!atomic_load(&slot->queue.used) && !slot->draining) || !enter(slot, &gate))
        return true;
    bool empty = !queues_is_capturing(slot->stream) && REAL(cuStreamQuery)(slot->stream) == CUDA_SUCCESS;
    leave(&gate);
    return empty;
}

bool queues_empty(int gpu) {
    CUstreamCaptureMode mode;
    bool empty = true;
    lock_relaxed(&mode);
    EACH_SLOT(slot, gpu)
    empty = empty && is_empty(slot);
    unlock_relaxed(&mode);
    return empty;
}

void queues_waits(CUstream stream) {
    CUstreamCaptureMode mode;
    struct gate *gate;
    struct slot *slot = (struct slot *)queues_find(stream); /* its first member */
    if (slot == NULL)
        return;
    lock_relaxed(&mode);
    if (enter(slot, &gate)) {
        slot->waits = record(&slot->wait, stream) || slot->waits;
        leave(&gate);
    }
    unlock_relaxed(&mode);
}

/* Under the lock. */
static bool waits(struct slot *slot) {
    struct gate *gate;
    if (!slot->waits || !enter(slot, &gate))
        return false;
    slot->waits = is_pending(slot->wait);
    leave(&gate);
    return slot->waits;
}

bool queues_only_wait(int gpu) {
    CUstreamCaptureMode mode;
    bool any = false, others = false;
    lock_relaxed(&mode);
    EACH_SLOT(slot, gpu)
    any = waits(slot) || any;
    EACH_SLOT(slot, gpu)
    others = others || (any && !slot->waits && !is_empty(slot));
    unlock_relaxed(&mode);
    return any && !others;
}

/* --- draining ----------------------------------------------------------------------------------------------------- */

static void drain(struct slot *slot) {
    struct gate *gate;
    atomic_store(&slot->queue.used, false);
    if (slot->orphan || !enter(slot, &gate))
        return;
    uint32_t launches = atomic_exchange(&slot->queue.launches, 0);
    slot->draining = record(&slot->drain, slot->stream);
    slot->drains_ns = clock_now();
    slot->unmarked = slot->draining ? launches : 0;
    leave(&gate);
}

static uintptr_t default_key(CUcontext context, CUstream stream) {
    return (uintptr_t)context + (stream == CU_STREAM_PER_THREAD ? 2 : 1);
}

/* While the gates were open, launches were not seen. The legacy default stream waits for those of all threads. */
static void add_default_queue(CUcontext context, int gpu) {
    lock_take(&queues.lock);
    add(default_key(context, CU_STREAM_LEGACY), context, CU_STREAM_LEGACY, gpu);
    lock_give(&queues.lock);
}

void queues_drain(int gpu, bool all) {
    CUstreamCaptureMode mode;
    if (all)
        contexts_on(queues.process, gpu, add_default_queue);
    lock_relaxed(&mode);
    EACH_SLOT(slot, gpu) {
        settle(slot);
        if (all || atomic_load(&slot->queue.used))
            drain(slot);
    }
    unlock_relaxed(&mode);
}

bool queues_drained(int gpu, uint64_t *left_ns) {
    CUstreamCaptureMode mode;
    lock_relaxed(&mode);
    struct outstanding work = settle_all(gpu);
    unlock_relaxed(&mode);
    uint64_t passed = clock_now() - work.begun_ns;
    *left_ns = work.unknown ? 0 : work.ns - (passed < work.first_ns ? passed : work.first_ns);
    return !work.draining;
}

/* --- streams ------------------------------------------------------------------------------------------------------ */

int queues_device_gpu(CUdevice device) {
    return device >= 0 && device < DEVICES_MAX ? queues.gpus[device] - 1 : NO_GPU;
}

int queues_current_gpu(void) {
    CUdevice device;
    return REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS ? queues_device_gpu(device) : NO_GPU;
}

static int gpu_of(CUcontext context) {
    CUcontext popped;
    if (REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
        return NO_GPU;
    int gpu = queues_current_gpu();
    REAL(cuCtxPopCurrent_v2)(&popped);
    return gpu;
}

/* Streams that are not known were created by a call that is not shadowed. Default streams are named so that any thread may
 * use the name: see add_default_queue. */
static struct queue *add_unknown(uintptr_t key, CUcontext context, CUstream stream) {
    bool is_default = contexts_is_default_stream(stream);
    if (!is_default && REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS)
        return NULL;
    int gpu = gpu_of(context);
    lock_take(&queues.lock);
    struct slot *slot = add(key, context, is_default ? CU_STREAM_LEGACY : stream, gpu);
    lock_give(&queues.lock);
    return slot != NULL ? &slot->queue : NULL;
}

struct queue *queues_find(CUstream stream) {
    CUcontext context = NULL;
    uintptr_t key = (uintptr_t)stream;
    if (contexts_is_default_stream(stream)) {
        if (REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || context == NULL)
            return NULL;
        key = default_key(context, stream);
    }
    struct slot *slot = find(key);
    return slot != NULL ? &slot->queue : add_unknown(key, context, stream);
}

void queues_created(CUstream stream) {
    queues_find(stream);
}

static void end_stream(struct slot *slot, CUstream stream) {
    struct gate *gate;
    if (!enter(slot, &gate))
        return;
    bool busy = !queues_is_capturing(stream) && REAL(cuStreamQuery)(stream) == CUDA_ERROR_NOT_READY;
    slot->orphan = slot->draining = busy && record(&slot->drain, stream);
    if (!slot->orphan)
        destroy_events(slot);
    set_key(slot, slot->orphan ? KEY_ORPHAN : KEY_FORMER);
    leave(&gate);
}

/* What is outstanding in it goes on. While the gates are open, only this frees earlier orphans. */
void queues_stream_ending(CUstream stream) {
    CUstreamCaptureMode mode;
    struct slot *slot = contexts_is_default_stream(stream) ? NULL : find((uintptr_t)stream);
    if (slot == NULL)
        return;
    lock_relaxed(&mode);
    for (struct slot *other = queues.slots; other < queues.slots + SLOTS; other++)
        if (is_live(other) && other->orphan)
            settle(other);
    end_stream(slot, stream);
    unlock_relaxed(&mode);
}

/* Its events have ended with it. */
void queues_context_ended(CUcontext context) {
    lock_take(&queues.lock);
    for (struct slot *slot = queues.slots; slot < queues.slots + SLOTS; slot++)
        if (is_live(slot) && slot->context == context)
            set_key(slot, KEY_FORMER);
    lock_give(&queues.lock);
}

CUcontext queues_next_context(int gpu, CUcontext after) {
    CUcontext next = NULL;
    lock_take(&queues.lock);
    EACH_SLOT(slot, gpu)
    if ((uintptr_t)slot->context > (uintptr_t)after && (next == NULL || (uintptr_t)slot->context < (uintptr_t)next))
        next = slot->context;
    lock_give(&queues.lock);
    return next;
}

void queues_capture_begins(void) {
    lock_take(&queues.lock);
}

void queues_capture_begun(void) {
    lock_give(&queues.lock);
}

void queues_forked(void) {
    memset(&queues, 0, sizeof queues);
}
