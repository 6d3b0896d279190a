/* Virtual memory management: the memory is there from cuMemCreate until its last handle, mapping, descriptor and multicast
 * binding are gone. */
#include "ways.h"

#include <unistd.h>

CUmemAllocationProp device_memory(bool exported) {
    return (CUmemAllocationProp){.type = ALLOCATION_PINNED,
                                 .handle_types = exported ? HANDLE_POSIX_FD : 0,
                                 .location = {LOCATION_DEVICE, device}};
}

CUmemAccessDesc device_access(void) {
    return (CUmemAccessDesc){.location = {LOCATION_DEVICE, device}, .flags = ACCESS_READ_WRITE};
}

CUresult map_memory(CUhandle memory, uint64_t bytes, CUdeviceptr *address) {
    CUmemAccessDesc access = device_access();
    CUresult result = cuda.cuMemAddressReserve(address, bytes, 0, 0, 0);
    if (result != CUDA_SUCCESS)
        return result;
    if ((result = cuda.cuMemMap(*address, bytes, 0, memory, 0)) != CUDA_SUCCESS) {
        cuda.cuMemAddressFree(*address, bytes);
        return result;
    }
    if ((result = cuda.cuMemSetAccess(*address, bytes, &access, 1)) != CUDA_SUCCESS)
        unmap_memory(*address, bytes);
    return result;
}

void unmap_memory(CUdeviceptr address, uint64_t bytes) {
    cuda.cuMemUnmap(address, bytes);
    cuda.cuMemAddressFree(address, bytes);
}

static const char *need_vmm(void) {
    return attribute(device, ATTRIBUTE_VMM) ? NULL : "this GPU has no virtual memory management";
}

static CUresult take_handle(uint64_t bytes, struct piece *piece) {
    CUmemAllocationProp properties = device_memory(false);
    return cuda.cuMemCreate(&piece->memory, bytes, &properties, 0);
}

static CUresult give_handle(struct piece *piece) {
    return cuda.cuMemRelease(piece->memory);
}

/* The handle is released at once: the mapping alone keeps the memory. */
static CUresult take_mapping(uint64_t bytes, struct piece *piece) {
    CUresult result = take_handle(bytes, piece);
    if (result != CUDA_SUCCESS)
        return result;
    result = map_memory(piece->memory, bytes, &piece->address);
    cuda.cuMemRelease(piece->memory);
    return result;
}

static CUresult give_mapping(struct piece *piece) {
    unmap_memory(piece->address, piece->bytes);
    return CUDA_SUCCESS;
}

/* --- exported and imported again --- */

static const char *need_export(void) {
    const char *why = need_vmm();
    if (why == NULL && !attribute(device, ATTRIBUTE_POSIX_HANDLES))
        why = "this GPU's memory cannot be exported through a file descriptor";
    return why;
}

static CUresult take_import(uint64_t bytes, struct piece *piece) {
    CUmemAllocationProp properties = device_memory(true);
    CUhandle made;
    CUresult result = cuda.cuMemCreate(&made, bytes, &properties, 0);
    if (result != CUDA_SUCCESS)
        return result;
    piece->descriptor = -1;
    result = cuda.cuMemExportToShareableHandle(&piece->descriptor, made, HANDLE_POSIX_FD, 0);
    cuda.cuMemRelease(made);
    if (result != CUDA_SUCCESS)
        return result;
    void *exported = (void *)(intptr_t)piece->descriptor;
    result = cuda.cuMemImportFromShareableHandle(&piece->memory, exported, HANDLE_POSIX_FD);
    close(piece->descriptor);
    return result;
}

/* --- multicast --- */

static uint64_t multicast_granularity;

static CUmulticastProp multicast(uint64_t bytes) {
    return (CUmulticastProp){.devices = 1, .size = bytes, .handle_types = HANDLE_POSIX_FD};
}

static const char *need_multicast(void) {
    enum { MINIMUM = 0 };
    CUmulticastProp properties = multicast(2 * MIB);
    size_t granularity = 0;
    CUhandle object;
    CUresult result;
    if (!attribute(device, ATTRIBUTE_MULTICAST))
        return "this GPU has no multicast objects";
    if ((result = cuda.cuMulticastGetGranularity(&granularity, &properties, MINIMUM)) != CUDA_SUCCESS)
        return because("cuMulticastGetGranularity: %s", error_name(result));
    multicast_granularity = granularity;
    properties = multicast(granularity);
    if ((result = cuda.cuMulticastCreate(&object, &properties)) != CUDA_SUCCESS)
        return because("cuMulticastCreate for one GPU: %s", error_name(result));
    cuda.cuMemRelease(object);
    return NULL;
}

/* The binding alone keeps the memory. */
static CUresult take_binding(uint64_t bytes, struct piece *piece) {
    uint64_t size = round_up(bytes, multicast_granularity);
    CUmulticastProp properties = multicast(size);
    CUmemAllocationProp memory = device_memory(true);
    CUhandle object, made;
    CUresult result = cuda.cuMemCreate(&made, size, &memory, 0);
    if (result != CUDA_SUCCESS)
        return result;
    if ((result = cuda.cuMulticastCreate(&object, &properties)) == CUDA_SUCCESS) {
        if ((result = cuda.cuMulticastAddDevice(object, device)) == CUDA_SUCCESS)
            result = cuda.cuMulticastBindMem(object, 0, made, 0, size, 0);
        if (result != CUDA_SUCCESS)
            cuda.cuMemRelease(object);
    }
    cuda.cuMemRelease(made);
    piece->memory = object;
    piece->bytes = size;
    return result;
}

static CUresult give_binding(struct piece *piece) {
    CUresult result = cuda.cuMulticastUnbind(piece->memory, device, 0, piece->bytes);
    cuda.cuMemRelease(piece->memory);
    return result;
}

#define MAPPING                                                                                                        \
    FUNCTIONS("cuMemCreate", "cuMemRelease", "cuMemAddressReserve", "cuMemAddressFree", "cuMemMap", "cuMemUnmap",      \
              "cuMemSetAccess")

const struct way vmm_ways[] = {
    {"vmm", "cuMemCreate", 2 * MIB, MAPPING, need_vmm, take_handle, give_handle, NULL},
    {"vmm-mapped", "cuMemCreate and cuMemMap, the handle released before the mapping", 2 * MIB, MAPPING, need_vmm,
     take_mapping, give_mapping, NULL},
    {"vmm-imported", "cuMemCreate, exported to a file descriptor and imported again", 2 * MIB,
     FUNCTIONS("cuMemCreate", "cuMemRelease", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"),
     need_export, take_import, give_handle, NULL},
    {"multicast", "cuMemCreate, kept by a multicast object alone", 2 * MIB,
     FUNCTIONS("cuMemCreate", "cuMemRelease", "cuMulticastCreate", "cuMulticastAddDevice", "cuMulticastBindMem",
               "cuMulticastUnbind", "cuMulticastGetGranularity"),
     need_multicast, take_binding, give_binding, NULL},
    {0},
};
