/* What contexts take beyond their first bytes: heaps, stacks, and green contexts. */
#include "extras.h"
#include "worker.h"

#include <pthread.h>

#define FUNCTIONS(X)                                                                                                   \
    X(cuCtxSetLimit, "cuCtxSetLimit", 3010)                                                                            \
    X(cuCtxGetLimit, "cuCtxGetLimit", 3010)                                                                            \
    X(cuCtxSetCurrent, "cuCtxSetCurrent", 4000)                                                                        \
    X(cuDeviceGetAttribute, "cuDeviceGetAttribute", 2000)                                                              \
    X(cuMemAlloc_v2, "cuMemAlloc", 3020)                                                                               \
    X(cuMemFree_v2, "cuMemFree", 3020)                                                                                 \
    X(cuStreamDestroy_v2, "cuStreamDestroy", 4000)                                                                     \
    X(cuDeviceGetDevResource, "cuDeviceGetDevResource", 12040)                                                         \
    X(cuDevSmResourceSplitByCount, "cuDevSmResourceSplitByCount", 12040)                                               \
    X(cuDevResourceGenerateDesc, "cuDevResourceGenerateDesc", 12040)                                                   \
    X(cuGreenCtxCreate, "cuGreenCtxCreate", 12040)                                                                     \
    X(cuGreenCtxDestroy, "cuGreenCtxDestroy", 12040)                                                                   \
    X(cuGreenCtxStreamCreate, "cuGreenCtxStreamCreate", 12050)                                                         \
    X(cuCtxFromGreenCtx, "cuCtxFromGreenCtx", 12040)
FAMILY_FUNCTIONS(FUNCTIONS)

/* ---- What is known of a context ---- */

static pthread_mutex_t extras_mutex = PTHREAD_MUTEX_INITIALIZER;

struct object extra_take(struct call *call, enum extra_way way) {
    struct object others[4], extra;
    unsigned count = 0;
    bool found = false;
    pthread_mutex_lock(&extras_mutex);
    while (!found && object_take_in(&call->random, KIND_LIMIT, call->context->serial, &extra)) {
        found = extra.way == way;
        if (!found)
            others[count++] = extra;
    }
    for (unsigned i = 0; i < count; i++)
        object_put(&others[i]);
    if (found)
        return extra;
    extra = (struct object){.context = call->context->serial,
                            .device = (int16_t)call->device,
                            .gpu = (int16_t)call->gpu,
                            .kind = KIND_LIMIT,
                            .way = (uint8_t)way};
    if (way == EXTRA_LOCAL)
        extra.handle = DEFAULT_STACK;
    else if (way != EXTRA_CODE)
        extra.size = way == EXTRA_HEAP ? DEFAULT_HEAP : DEFAULT_PRINTF;
    return extra;
}

/* What is counted and not there: of code all that is below what every context holds, of kernels who were not launched. */
void extra_put(struct call *call, struct object *extra) {
    if (extra->way == EXTRA_CODE) {
        extra->slack = rounded(extra->size, BLOCK);
    } else if (extra->way == EXTRA_LOCAL) {
        extra->slack = extra_local_bytes(call, larger_of(extra->handle, extra->other)) -
                       extra_local_bytes(call, larger_of(extra->handle, extra->size));
        if (extra->other > DEFAULT_STACK)
            call->context->sticky = true;
    }
    if (!object_put(extra))
        wrong(call, "too many objects");
    pthread_mutex_unlock(&extras_mutex);
}

uint64_t extra_local_bytes(const struct call *call, uint64_t bytes) {
    int processors = 0, threads = 0;
    cu.cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, call->device);
    cu.cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, call->device);
    return bytes > DEFAULT_STACK ? rounded((bytes - DEFAULT_STACK) * (uint64_t)processors * (uint64_t)threads, BLOCK)
                                 : 0;
}

uint64_t extra_heap_bytes(const struct object *extra, uint64_t value) {
    uint64_t included = extra->way == EXTRA_HEAP ? DEFAULT_HEAP : DEFAULT_PRINTF;
    return value > included ? rounded(value - included, BLOCK) : 0;
}

static CUresult release_limit(const struct object *object) {
    switch (object->way) {
    case EXTRA_LOCAL:
        return cu.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, DEFAULT_STACK);
    case EXTRA_HEAP:
        return cu.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, DEFAULT_HEAP);
    case EXTRA_PRINTF:
        return cu.cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, DEFAULT_PRINTF);
    default:
        return CUDA_SUCCESS;
    }
}

void fill_claim(struct call *call) {
    CUdeviceptr pieces[200];
    unsigned count = 0;
    needs(call, UINT64_MAX / 4); /* nobody else can have anything meanwhile */
    say(call, " (taking all)");
    for (uint64_t size = 1024 * MIB; size >= BLOCK; size /= 2)
        while (count < sizeof pieces / sizeof pieces[0] && cu.cuMemAlloc_v2(&pieces[count], size) == CUDA_SUCCESS)
            count++;
    while (count > 0)
        expect(call, CALL(cu.cuMemFree_v2(pieces[--count])), CUDA_SUCCESS, "cuMemFree_v2");
}

/* ---- Limits ---- */

static uint64_t heap_value(struct call *call, const struct object *extra) {
    switch (random_below(&call->random, 5)) {
    case 0:
        return extra->way == EXTRA_HEAP ? DEFAULT_HEAP : DEFAULT_PRINTF;
    case 1:
        return 1 + random_below(&call->random, DEFAULT_HEAP);
    case 2:
        return DEFAULT_HEAP + (1 + random_below(&call->random, 40)) * BLOCK - 1 + random_below(&call->random, 3);
    default: {
        uint64_t size = random_size(call);
        return size > 8192 * MIB ? 8192 * MIB : size;
    }
    }
}

static void set_heap(struct call *call) {
    if (!need_context(call))
        return;
    enum extra_way way = random_once_in(&call->random, 3) ? EXTRA_PRINTF : EXTRA_HEAP;
    CUlimit limit = way == EXTRA_PRINTF ? CU_LIMIT_PRINTF_FIFO_SIZE : CU_LIMIT_MALLOC_HEAP_SIZE;
    struct object extra = extra_take(call, way);
    uint64_t value = heap_value(call, &extra), now = extra_heap_bytes(&extra, extra.size);
    uint64_t then = extra_heap_bytes(&extra, value);
    needs(call, then > now ? then - now : 0);
    say(call, "cuCtxSetLimit(%s, %llu) after %llu on %d", way == EXTRA_PRINTF ? "printf" : "heap",
        (unsigned long long)value, (unsigned long long)extra.size, call->device);
    if (judged(call, CALL(cu.cuCtxSetLimit(limit, value)))) {
        grows(call, (int64_t)(then - now), (int64_t)(then - now));
        extra.size = value;
    }
    extra_put(call, &extra);
}

static void set_stack(struct call *call) {
    if (!need_context(call))
        return;
    struct object extra = extra_take(call, EXTRA_LOCAL);
    uint64_t value = random_once_in(&call->random, 8) ? 1 + random_below(&call->random, 512 * KIB)
                                                      : 256 + random_below(&call->random, 6 * KIB);
    size_t is = 0;
    value = random_once_in(&call->random, 3) ? DEFAULT_STACK : value;
    uint64_t counted = extra_local_bytes(call, larger_of(extra.handle, extra.other));
    uint64_t will_count = extra_local_bytes(call, larger_of(value, extra.other));
    int64_t change = (int64_t)extra_local_bytes(call, larger_of(value, extra.size)) -
                     (int64_t)extra_local_bytes(call, larger_of(extra.handle, extra.size));
    needs(call, will_count > counted ? will_count - counted : 0);
    say(call, "cuCtxSetLimit(stack, %llu) after %llu on %d", (unsigned long long)value,
        (unsigned long long)extra.handle, call->device);
    if (judged(call, CALL(cu.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, value)))) {
        grows(call, change, change);
        extra.handle = value;
    }
    CUresult result = CALL(cu.cuCtxGetLimit(&is, CU_LIMIT_STACK_SIZE));
    if (result != CUDA_SUCCESS || is != extra.handle)
        wrong(call, "the stack's limit is %zu", is);
    extra_put(call, &extra);
}

/* ---- Green contexts. They hold the primary context, so they live and die within one operation. ---- */

static CUdevResourceDesc describe(struct call *call, int device) {
    static CUdevResourceDesc known[GPUS]; /* nothing ends them */
    CUdevResource all, part;
    unsigned groups = 1;
    if (known[device] != NULL)
        return known[device];
    if (expect(call, CALL(cu.cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM)), CUDA_SUCCESS,
               "cuDeviceGetDevResource") &&
        expect(call, CALL(cu.cuDevSmResourceSplitByCount(&part, &groups, &all, NULL, 0, 8)), CUDA_SUCCESS,
               "cuDevSmResourceSplitByCount"))
        expect(call, CALL(cu.cuDevResourceGenerateDesc(&known[device], &part, 1)), CUDA_SUCCESS,
               "cuDevResourceGenerateDesc");
    return known[device];
}

/* What is made in it lives in the primary context, and is gone with that. */
static void use_green(struct call *call, CUgreenCtx green) {
    CUcontext context = NULL;
    CUstream stream = NULL;
    CUdeviceptr address;
    if (!expect(call, CALL(cu.cuCtxFromGreenCtx(&context, green)), CUDA_SUCCESS, "cuCtxFromGreenCtx") ||
        !expect(call, CALL(cu.cuCtxSetCurrent(context)), CUDA_SUCCESS, "cuCtxSetCurrent"))
        return;
    if (cu.cuMemAlloc_v2(&address, 6 * MIB) == CUDA_SUCCESS)
        expect(call, CALL(cu.cuMemFree_v2(address)), CUDA_SUCCESS, "cuMemFree_v2");
    if (expect(call, CALL(cu.cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0)), CUDA_SUCCESS,
               "cuGreenCtxStreamCreate"))
        expect(call, CALL(cu.cuStreamDestroy_v2(stream)), CUDA_SUCCESS, "cuStreamDestroy_v2");
    if (random_once_in(&call->random, 2))
        fill_claim(call);
    expect(call, CALL(cu.cuCtxSetCurrent(NULL)), CUDA_SUCCESS, "cuCtxSetCurrent(NULL)");
}

static void green(struct call *call) {
    CUgreenCtx greens[3];
    unsigned count = 0, wanted = 1 + (unsigned)random_below(&call->random, 3);
    call->device = (int)random_below(&call->random, (uint64_t)device_count());
    call->gpu = gpu_of_device(call->device);
    CUdevResourceDesc desc = describe(call, call->device);
    if (desc == NULL || !gpu_claimed(call->gpu))
        return;
    bool alone = context_primary(call->device) == NULL;
    needs(call, (wanted + alone) * board->context_bytes[call->gpu]);
    say(call, "%u green contexts on %d%s", wanted, call->device, alone ? ", no primary one" : "");
    while (count < wanted &&
           judged(call, CALL(cu.cuGreenCtxCreate(&greens[count], desc, call->device, CU_GREEN_CTX_DEFAULT_STREAM))))
        count++;
    if (count == wanted)
        use_green(call, greens[0]);
    current_changed();
    bool refused = call->desk->outcome == OUTCOME_REFUSED;
    while (count > 0)
        expect(call, CALL(cu.cuGreenCtxDestroy(greens[--count])), CUDA_SUCCESS, "cuGreenCtxDestroy");
    if (refused && call->desk->outcome == OUTCOME_DONE)
        call->desk->outcome = OUTCOME_REFUSED;
    grows(call, 0, 0);
}

__attribute__((constructor)) static void release_functions(void) {
    releases[KIND_LIMIT] = release_limit;
}

static const struct operation operations[] = {
    {"limit.heap", 10, set_heap, "cuCtxSetLimit", false, false},
    {"limit.stack", 8, set_stack, "cuCtxSetLimit cuCtxGetLimit cuDeviceGetAttribute", false, false},
    {0},
};

static const struct operation green_operations[] = {
    {"green.live", 4, green,
     "cuDeviceGetDevResource cuDevSmResourceSplitByCount cuDevResourceGenerateDesc cuGreenCtxCreate cuGreenCtxDestroy "
     "cuGreenCtxStreamCreate cuCtxFromGreenCtx cuMemAlloc_v2 cuMemFree_v2 cuCtxSetCurrent cuStreamDestroy_v2",
     true, false},
    {0},
};

static const struct function none[] = {{0}};

const struct family family_limit = {"limit", functions, operations};
const struct family family_green = {"green", none, green_operations};
