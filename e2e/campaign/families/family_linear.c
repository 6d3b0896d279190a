/* Linear memory: plain, pitched, managed, with addresses of 32 bits. */
#include "family.h"
#include "worker.h"

#define FUNCTIONS(X)                                                                                                   \
    X(cuMemAlloc_v2, "cuMemAlloc", 3020)                                                                               \
    X(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020)                                                                     \
    X(cuMemAllocManaged, "cuMemAllocManaged", 6000)                                                                    \
    X(cuMemFree_v2, "cuMemFree", 3020)                                                                                 \
    X(cuMemsetD8_v2, "cuMemsetD8", 3020)                                                                               \
    X(cuMemGetAddressRange_v2, "cuMemGetAddressRange", 3020)
FAMILY_FUNCTIONS(FUNCTIONS)

/* The driver packs what is smaller into blocks that several share. */
#define PACKED_BELOW MIB

static struct object object_of(const struct call *call, enum kind kind, uint64_t address, uint64_t size) {
    return (struct object){.handle = address,
                           .size = size,
                           .context = call->context->serial,
                           .device = (int16_t)call->device,
                           .gpu = (int16_t)call->gpu,
                           .kind = (uint8_t)kind};
}

static uint64_t most_of(uint64_t size) {
    return rounded(size, BLOCK);
}

static uint64_t least_of(uint64_t size) {
    return size < PACKED_BELOW ? 0 : rounded(size, BLOCK);
}

/* Notes what was granted, or gives it back where there is no room for the note. */
static void keep(struct call *call, const struct object *object, bool lazy) {
    grows(call, lazy ? 0 : (int64_t)least_of(object->size), (int64_t)most_of(object->size));
    say(call, " -> %#llx", (unsigned long long)object->handle);
    if (!object_put(object)) {
        grows(call, -(int64_t)BLOCK, (int64_t)BLOCK);
        expect(call, CALL(cu.cuMemFree_v2(object->handle)), CUDA_SUCCESS, "cuMemFree_v2");
    }
}

static void allocate(struct call *call) {
    CUdeviceptr address = 0;
    if (!need_context(call))
        return;
    uint64_t size = random_size(call);
    needs(call, most_of(size));
    say(call, "cuMemAlloc_v2(%llu) on %d", (unsigned long long)size, call->device);
    if (!judged(call, CALL(cu.cuMemAlloc_v2(&address, size))))
        return;
    struct object object = object_of(call, KIND_LINEAR, address, size);
    keep(call, &object, false);
}

static void allocate_pitch(struct call *call) {
    CUdeviceptr address = 0;
    size_t pitch = 0;
    if (!need_context(call))
        return;
    uint64_t width = 1 + random_below(&call->random, random_once_in(&call->random, 2) ? 100 : 20000);
    uint64_t height = 1 + random_below(&call->random, 2000);
    needs(call, most_of(rounded(width, 512) * height));
    say(call, "cuMemAllocPitch_v2(%llu x %llu) on %d", (unsigned long long)width, (unsigned long long)height,
        call->device);
    if (!judged(call, CALL(cu.cuMemAllocPitch_v2(&address, &pitch, width, height, 4))))
        return;
    if (pitch < width)
        wrong(call, "a pitch of %zu", pitch);
    struct object object = object_of(call, KIND_PITCHED, address, pitch * height);
    keep(call, &object, false);
}

/* Managed memory takes of a GPU's when that GPU first needs it, but counts at once, on each that the process sees. */
static void allocate_managed(struct call *call) {
    CUdeviceptr address = 0;
    if (!need_context(call))
        return;
    uint64_t size = random_size(call);
    if (size > 1024 * MIB)
        size = 1024 * MIB; /* more may be the host's to refuse */
    needs_everywhere(call, most_of(size));
    say(call, "cuMemAllocManaged(%llu) on %d", (unsigned long long)size, call->device);
    if (!judged(call, CALL(cu.cuMemAllocManaged(&address, size, CU_MEM_ATTACH_GLOBAL))))
        return;
    struct object object = object_of(call, KIND_MANAGED, address, size);
    object.slack = most_of(size);
    object.also = (uint8_t)visible_gpus();
    keep(call, &object, true);
}

static CUresult release_object(const struct object *object) {
    return cu.cuMemFree_v2(object->handle);
}

static void free_one(struct call *call) {
    static const enum kind kinds[] = {KIND_LINEAR, KIND_LINEAR, KIND_LINEAR, KIND_PITCHED, KIND_MANAGED};
    struct object object;
    const unsigned count = sizeof kinds / sizeof kinds[0];
    unsigned first = (unsigned)random_below(&call->random, count), tries = 0;
    if (!need_context(call))
        return;
    while (!object_take(&call->random, kinds[(first + tries) % count], -1, &object))
        if (++tries == count)
            return;
    enum kind kind = (enum kind)object.kind;
    call->gpu = object.gpu;
    say(call, "cuMemFree_v2(%#llx) of %llu", (unsigned long long)object.handle, (unsigned long long)object.size);
    if (expect(call, CALL(cu.cuMemFree_v2(object.handle)), CUDA_SUCCESS, "freeing"))
        grows(call, -(int64_t)most_of(object.size), kind == KIND_MANAGED ? 0 : -(int64_t)least_of(object.size));
}

/* What was granted is there. */
static void use_memory(struct call *call) {
    static const enum kind kinds[] = {KIND_LINEAR, KIND_PITCHED, KIND_MANAGED};
    struct object object;
    CUdeviceptr base = 0;
    size_t size = 0;
    enum kind kind = kinds[random_below(&call->random, 3)];
    if (!need_context(call) || !object_take(&call->random, kind, call->device, &object))
        return;
    uint64_t length = object.size < 4096 ? object.size : 4096;
    say(call, "cuMemsetD8 of the end of %#llx", (unsigned long long)object.handle);
    expect(call, CALL(cu.cuMemsetD8_v2(object.handle + object.size - length, 1, length)), CUDA_SUCCESS, "cuMemsetD8");
    CUresult result = CALL(cu.cuMemGetAddressRange_v2(&base, &size, object.handle + object.size - 1));
    expect(call, result, CUDA_SUCCESS, "cuMemGetAddressRange");
    if (base != object.handle || size != object.size)
        wrong(call, "the range is %#llx, %zu", (unsigned long long)base, size);
    grows(call, 0, kind == KIND_MANAGED ? (int64_t)most_of(object.size) : 0);
    object_put(&object);
}

__attribute__((constructor)) static void release_functions(void) {
    releases[KIND_LINEAR] = releases[KIND_PITCHED] = releases[KIND_MANAGED] = release_object;
}

static const struct operation operations[] = {
    {"linear.alloc", 60, allocate, "cuMemAlloc_v2 cuMemFree_v2", false, false},
    {"linear.pitch", 14, allocate_pitch, "cuMemAllocPitch_v2 cuMemFree_v2", false, false},
    {"linear.managed", 14, allocate_managed, "cuMemAllocManaged cuMemFree_v2", false, false},
    {"linear.free", 90, free_one, "cuMemFree_v2", false, false},
    {"linear.use", 10, use_memory, "cuMemsetD8_v2 cuMemGetAddressRange_v2", false, false},
    {0},
};

const struct family family_linear = {"linear", functions, operations};
