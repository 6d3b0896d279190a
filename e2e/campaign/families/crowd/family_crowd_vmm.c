/* A crowd at few addresses: memory is mapped, unmapped, retained and bound to a multicast object by all threads at once. */
#include "crowd.h"
#include "worker.h"

#include <pthread.h>

#define FUNCTIONS(X)                                                                                                   \
    X(cuMemCreate, "cuMemCreate", 10020)                                                                               \
    X(cuMemRelease, "cuMemRelease", 10020)                                                                             \
    X(cuMemAddressReserve, "cuMemAddressReserve", 10020)                                                               \
    X(cuMemMap, "cuMemMap", 10020)                                                                                     \
    X(cuMemUnmap, "cuMemUnmap", 10020)                                                                                 \
    X(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000)                                               \
    X(cuMulticastCreate, "cuMulticastCreate", 12010)                                                                   \
    X(cuMulticastAddDevice, "cuMulticastAddDevice", 12010)                                                             \
    X(cuMulticastBindAddr, "cuMulticastBindAddr", 12010)                                                               \
    X(cuMulticastUnbind, "cuMulticastUnbind", 12010)
FAMILY_FUNCTIONS(FUNCTIONS)

/* Few places, so that threads meet. */
enum { PLACES = 2, BLOCKS = 8 };

struct place {
    CUdeviceptr address;
    _Atomic uint64_t size; /* of what was mapped there last */
};

static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
static struct place places[PLACES];
static CUmemGenericAllocationHandle multicast;

static bool make_places(struct call *call) {
    const CUmulticastObjectProp properties = {.numDevices = 1, .size = PLACES * BLOCKS * BLOCK};
    pthread_mutex_lock(&making);
    for (unsigned i = 0; i < PLACES; i++)
        if (places[i].address == 0)
            cu.cuMemAddressReserve(&places[i].address, BLOCKS * BLOCK, 0, 0, 0);
    if (multicast == 0 && cu.cuMulticastCreate(&multicast, &properties) == CUDA_SUCCESS)
        cu.cuMulticastAddDevice(multicast, call->device);
    pthread_mutex_unlock(&making);
    return places[PLACES - 1].address != 0;
}

static struct place *choose_place(struct call *call) {
    return crowd_enter(call) && make_places(call) ? &places[random_below(&call->random, PLACES)] : NULL;
}

static uint64_t choose_blocks(struct call *call) {
    return (1 + random_below(&call->random, BLOCKS)) * BLOCK;
}

/* The mapping alone keeps the memory. */
static void map(struct call *call) {
    CUmemGenericAllocationHandle handle;
    const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    struct place *place = choose_place(call);
    uint64_t size = choose_blocks(call);
    if (place == NULL || !crowd_did(call, cu.cuMemCreate(&handle, size, &properties, 0)))
        return;
    say(call, "%llu mapped at %#llx", (unsigned long long)size, (unsigned long long)place->address);
    if (crowd_did(call, cu.cuMemMap(place->address, size, 0, handle, 0)))
        atomic_store(&place->size, size);
    cu.cuMemRelease(handle);
}

static void unmap(struct call *call) {
    struct place *place = choose_place(call);
    if (place == NULL)
        return;
    say(call, "unmapping %#llx", (unsigned long long)place->address);
    crowd_did(call, cu.cuMemUnmap(place->address, atomic_load(&place->size)));
}

static void retain(struct call *call) {
    CUmemGenericAllocationHandle handle;
    struct place *place = choose_place(call);
    if (place == NULL)
        return;
    void *address = (void *)(uintptr_t)place->address; /* NOLINT(performance-no-int-to-ptr) */
    say(call, "retaining what is at %#llx", (unsigned long long)place->address);
    if (crowd_did(call, cu.cuMemRetainAllocationHandle(&handle, address)) &&
        !crowd_keep(call, KIND_CROWD_RETAINED, handle, 0, 0))
        cu.cuMemRelease(handle);
}

static void release(struct call *call) {
    struct object object;
    if (!crowd_enter(call) || !object_take(&call->random, KIND_CROWD_RETAINED, -1, &object))
        return;
    say(call, "releasing what was retained");
    crowd_did(call, cu.cuMemRelease(object.handle));
}

static void bind(struct call *call) {
    struct place *place = choose_place(call);
    if (place == NULL)
        return;
    uint64_t offset = random_below(&call->random, (uint64_t)PLACES * BLOCKS) * BLOCK, size = choose_blocks(call);
    say(call, "binding %llu at %#llx", (unsigned long long)size, (unsigned long long)place->address);
    crowd_did(call, cu.cuMulticastBindAddr(multicast, offset, place->address, size, 0));
}

static void unbind(struct call *call) {
    if (choose_place(call) == NULL)
        return;
    say(call, "unbinding");
    for (unsigned i = 0; i < PLACES * BLOCKS; i++)
        for (unsigned blocks = 1; blocks <= BLOCKS; blocks++)
            if (crowd_did(call, cu.cuMulticastUnbind(multicast, call->device, i * BLOCK, blocks * BLOCK)))
                return;
}

static const struct operation operations[] = {
    {"crowd_vmm.map", 20, map, "cuMemCreate cuMemMap", false, false},
    {"crowd_vmm.unmap", 20, unmap, "cuMemUnmap", false, false},
    {"crowd_vmm.retain", 20, retain, "cuMemRetainAllocationHandle", false, false},
    {"crowd_vmm.release", 3, release, "cuMemRelease", false, false},
    {"crowd_vmm.bind", 10, bind, "cuMulticastBindAddr", false, true},
    {"crowd_vmm.unbind", 6, unbind, "cuMulticastUnbind", false, true},
    {0},
};

const struct family family_crowd_vmm = {"crowd_vmm", functions, operations};
