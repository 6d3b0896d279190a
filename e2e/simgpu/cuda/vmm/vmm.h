/*
 * Physical memory that programs hold by handles, and the addresses at which they see it.
 *
 * Physical memory is the process's, not a context's. It lives as long as a handle, a mapping, a binding to a multicast
 * object or anything else here refers to it; once it was shared with other processes, as long as any of them does
 * (shared_objects.h). Memory behind legacy IPC handles and external memory is of the same kind, without a handle.
 *
 * Its contents lie in one file of the process without a name, those of shared memory with the object. So mappings of one
 * memory show the same, wherever and whenever they are made.
 */
#ifndef SIMGPU_VMM_H
#define SIMGPU_VMM_H

#include "cuda/memory/heap.h"

struct vmm_binding;

struct vmm_memory {
    struct handle handle;
    uint32_t handles;    /* that the program has: from cuMemCreate, cuMemRetainAllocationHandle, an import */
    uint32_t references; /* all, these included */
    bool multicast;
    bool imported;   /* another one's, or once more our own: takes no memory */
    CUdevice device; /* CU_DEVICE_CPU: the host's */
    uint64_t size;
    uint64_t object;  /* of shared_objects.h, once it is shared; else 0 */
    uint64_t content; /* where in the process's file, if it is not */
    CUmemAllocationProp prop;
    CUmulticastObjectProp multicast_prop;
    _Atomic uint64_t own_devices;
    _Atomic uint64_t *devices; /* of a multicast object: bit per GPU of the topology that was added */
    struct vmm_binding *bindings;
};

/* Around everything here; functions that end in _locked are called with it, all others without. */
extern pthread_mutex_t vmm_mutex;

/* The memory that a program's handle means, with a reference of the caller's own; CUDA_ERROR_INVALID_VALUE if none. */
CUresult vmm_hold(CUmemGenericAllocationHandle handle, struct vmm_memory **memory);
void vmm_drop(struct vmm_memory *memory);

struct vmm_memory *vmm_find_locked(CUmemGenericAllocationHandle handle);
struct vmm_memory *vmm_new_locked(void); /* with one reference */
void vmm_drop_locked(struct vmm_memory *memory);

/* Makes memory one that other processes can hold. */
CUresult vmm_share_locked(struct vmm_memory *memory);

/* Memory of an object that the caller holds, whose hold it takes over, success or not. */
CUresult vmm_adopt_locked(uint64_t object, struct vmm_memory **memory);

/* Gives up a multicast object's bindings. */
void multicast_gone_locked(struct vmm_memory *memory);
CUresult multicast_export_locked(struct vmm_memory *memory, int *fd);
CUresult multicast_adopt_locked(uint64_t object, struct vmm_memory **memory);
bool multicast_complete(const struct vmm_memory *memory);

/* ---- Addresses ---- */

enum range_kind { RANGE_MAPPED, RANGE_IPC, RANGE_EXTERNAL, RANGE_EXTERNAL_ARRAY };

struct range {
    struct handle handle;
    CUdeviceptr base;
    uint64_t size;
    enum range_kind kind;
    struct vmm_memory *memory; /* a reference of its own */
    uint64_t offset;
    uint8_t access[SIM_MAX_GPUS]; /* CUmemAccess_flags, by device */
    uint8_t host_access;
    unsigned opens;       /* of RANGE_IPC */
    uint64_t within;      /* of external memory: where in the range it begins */
    void *owner;          /* and the external memory that it is of */
    struct extent extent; /* what heap_find answers with */
};

/* Anywhere: address space of its own, accessible at once. The caller's reference to the memory goes into the range. */
CUresult range_new_locked(enum range_kind kind, struct CUctx_st *context, struct vmm_memory *memory, uint64_t offset,
                          uint64_t size, struct range **range);
/* Unmaps and forgets; the address space of all but RANGE_MAPPED goes too. */
void range_delete_locked(struct range *range);
struct range *range_find_locked(CUdeviceptr address);
bool range_overlaps_locked(CUdeviceptr base, uint64_t size);

/* A range in address space that is reserved. Takes no reference and shows nothing yet. NULL: out of memory. */
struct range *range_insert_locked(enum range_kind kind, CUdeviceptr base, uint64_t size, struct vmm_memory *memory,
                                  uint64_t offset);
void ranges_each_locked(void (*fn)(struct range *range, void *arg), void *arg);

/* Shows the memory at its addresses if anybody may access it, nothing otherwise. False: no room in the address space. */
bool range_show_locked(struct range *range);

/* For heap.c: what heap_find, heap_address, heap_touch and heap_free say of addresses that are not the heap's. */
bool range_find(CUdeviceptr address, struct allocation *allocation);
bool range_address(CUdeviceptr address);
bool range_touch(CUdeviceptr address, uint64_t size);
CUresult range_free(CUdeviceptr address);

/* What was opened in a context goes with it. */
void ranges_context_gone(struct CUctx_st *context);
void external_context_gone(struct CUctx_st *context);

#endif
