/* Host memory that the GPU can reach: none of it is GPU memory. */
#include "family.h"
#include "worker.h"

#include <stdlib.h>
#include <sys/mman.h>

#define FUNCTIONS(X)                                                                                                   \
    X(cuMemHostAlloc, "cuMemHostAlloc", 2020)                                                                          \
    X(cuMemAllocHost_v2, "cuMemAllocHost", 3020)                                                                       \
    X(cuMemFreeHost, "cuMemFreeHost", 2000)                                                                            \
    X(cuMemHostRegister_v2, "cuMemHostRegister", 6050)                                                                 \
    X(cuMemHostUnregister, "cuMemHostUnregister", 4000)
FAMILY_FUNCTIONS(FUNCTIONS)

static struct object object_of(const struct call *call, enum kind kind, void *address, uint64_t size) {
    return (struct object){.handle = (uintptr_t)address,
                           .size = size,
                           .context = call->context->serial,
                           .device = (int16_t)call->device,
                           .gpu = (int16_t)call->gpu,
                           .kind = (uint8_t)kind};
}

static void allocate(struct call *call) {
    void *address = NULL;
    uint64_t size = 1 + random_below(&call->random, 8 * MIB);
    if (!need_context(call) || objects_count(KIND_HOST) >= 8)
        return;
    say(call, "cuMemHostAlloc(%llu)", (unsigned long long)size);
    CUresult result = random_once_in(&call->random, 2) ? CALL(cu.cuMemHostAlloc(&address, size, 0))
                                                       : CALL(cu.cuMemAllocHost_v2(&address, size));
    if (!expect(call, result, CUDA_SUCCESS, "host memory"))
        return;
    grows(call, 0, 0);
    struct object object = object_of(call, KIND_HOST, address, size);
    if (!object_put(&object))
        expect(call, CALL(cu.cuMemFreeHost(address)), CUDA_SUCCESS, "cuMemFreeHost");
}

static CUresult release_host(const struct object *object) {
    return cu.cuMemFreeHost((void *)(uintptr_t)object->handle);
}

static void free_one(struct call *call) {
    struct object object;
    if (!need_context(call) || !object_take(&call->random, KIND_HOST, call->device, &object))
        return;
    say(call, "cuMemFreeHost");
    if (expect(call, CALL(release_host(&object)), CUDA_SUCCESS, "cuMemFreeHost"))
        grows(call, 0, 0);
}

/* Registered and unregistered in one go: the memory is the program's, and its context may end. */
static void enrol(struct call *call) {
    size_t size = (1 + random_below(&call->random, 512)) * 4096;
    if (!need_context(call))
        return;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return;
    say(call, "cuMemHostRegister(%zu)", size);
    if (expect(call, CALL(cu.cuMemHostRegister_v2(memory, size, 0)), CUDA_SUCCESS, "cuMemHostRegister"))
        expect(call, CALL(cu.cuMemHostUnregister(memory)), CUDA_SUCCESS, "cuMemHostUnregister");
    grows(call, 0, 0);
    munmap(memory, size);
}

__attribute__((constructor)) static void release_functions(void) {
    releases[KIND_HOST] = release_host;
}

static const struct operation operations[] = {
    {"host.alloc", 4, allocate, "cuMemHostAlloc cuMemAllocHost_v2 cuMemFreeHost", false, false},
    {"host.free", 5, free_one, "cuMemFreeHost", false, false},
    {"host.register", 3, enrol, "cuMemHostRegister_v2 cuMemHostUnregister", false, false},
    {0},
};

const struct family family_host = {"host", functions, operations};
