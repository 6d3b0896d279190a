/*
 * Memory that leaves the process which made it. Linked with libcuda.so.1. The limit is judged by the simulator's record,
 * and here by what a program can see: what is passed on counts once, and is free when nobody has it any more.
 *
 *   passing orphans WAY   children make 64 MiB each, export it, and exit or are killed; this process keeps only what WAY
 *                         leaves: descriptor, handle, mapping, external, pool, dma-buf, ipc. Then it takes what is left,
 *                         and takes all again after it has let go.
 *   passing many N        N pieces of 2 MiB are exported to another process, which imports and maps all, three times
 *   passing small N       N allocations of 4 KiB are opened by another process, by their IPC handles
 *   passing dma-buf       ranges of one and of several allocations, freed while their dma-bufs are open
 *   passing far DIRECTORY memory of the second GPU is opened from a context on the first, under the claims in DIRECTORY
 *
 * The first GPU has a limit of 512 MiB, and a context costs 64 MiB.
 */
#include "../driver/cuda_api.h"
#include "descriptors.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct CUmemAccessDesc {
    CUmemLocation location;
    int flags;
} CUmemAccessDesc;

CUresult cuInit(unsigned int);
CUresult cuCtxCreate_v2(CUcontext *, unsigned int, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuCtxSynchronize(void);
CUresult cuMemGetInfo_v2(size_t *, size_t *);
CUresult cuMemCreate(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
CUresult cuMemRelease(CUmemGenericAllocationHandle);
CUresult cuMemAddressReserve(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
CUresult cuMemMap(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
CUresult cuMemUnmap(CUdeviceptr, size_t);
CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
CUresult cuMemExportToShareableHandle(void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType,
                                      unsigned long long);
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType);
CUresult cuMemGetHandleForAddressRange(void *, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long);
CUresult cuImportExternalMemory(CUexternalMemory *, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *);
CUresult cuDestroyExternalMemory(CUexternalMemory);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuIpcGetMemHandle(CUipcMemHandle *, CUdeviceptr);
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *, CUipcMemHandle, unsigned int);
CUresult cuIpcCloseMemHandle(CUdeviceptr);
CUresult cuMemPoolCreate(CUmemoryPool *, const CUmemPoolProps *);
CUresult cuMemPoolDestroy(CUmemoryPool);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
CUresult cuMemPoolExportToShareableHandle(void *, CUmemoryPool, CUmemAllocationHandleType, unsigned long long);
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *, void *, CUmemAllocationHandleType, unsigned long long);

#define MIB ((size_t)1 << 20)
#define PIECE (64 * MIB)
#define PIECES 7 /* in 512 MiB, beside the context of whoever makes them */
#define BY_DESCRIPTOR CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define LAZY_PEER_ACCESS 1u

#define MUST(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "passing: line %d: not so: %s\n", __LINE__, #condition);                                   \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)
#define OK(call) MUST((call) == CUDA_SUCCESS)

static const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                               .requestedHandleTypes = BY_DESCRIPTOR,
                                               .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
static const CUmemPoolProps pool_properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                               .handleTypes = BY_DESCRIPTOR,
                                               .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};

/* A child that ends with this process. */
static pid_t fork_child(void) {
    pid_t pid = fork();
    if (pid == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    return pid;
}

static bool begin_on(CUdevice device) {
    CUcontext context;
    OK(cuInit(0));
    return cuCtxCreate_v2(&context, 0, device) == CUDA_SUCCESS;
}

static void begin(void) {
    MUST(begin_on(0));
}

static size_t free_bytes(void) {
    size_t left, total;
    OK(cuMemGetInfo_v2(&left, &total));
    return left;
}

/* --- orphans ------------------------------------------------------------------------------------------------------ */

/* What is passed on: a descriptor, or an IPC handle. */
static CUipcMemHandle ipc_handle;

static int make_physical(void) {
    CUmemGenericAllocationHandle handle;
    int descriptor;
    if (cuMemCreate(&handle, PIECE, &properties, 0) != CUDA_SUCCESS)
        return -1;
    OK(cuMemExportToShareableHandle(&descriptor, handle, BY_DESCRIPTOR, 0));
    return descriptor;
}

static int make_pool(void) {
    CUmemoryPool pool;
    CUdeviceptr address;
    int descriptor;
    OK(cuMemPoolCreate(&pool, &pool_properties));
    if (cuMemAllocFromPoolAsync(&address, PIECE, pool, NULL) != CUDA_SUCCESS)
        return -1;
    OK(cuCtxSynchronize());
    OK(cuMemPoolExportToShareableHandle(&descriptor, pool, BY_DESCRIPTOR, 0));
    return descriptor;
}

static int make_dma_buf(void) {
    CUdeviceptr address;
    int descriptor;
    if (cuMemAlloc_v2(&address, PIECE) != CUDA_SUCCESS)
        return -1;
    OK(cuMemGetHandleForAddressRange(&descriptor, address, PIECE, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    return descriptor;
}

static int make_ipc(void) {
    CUdeviceptr address;
    if (cuMemAlloc_v2(&address, PIECE) != CUDA_SUCCESS)
        return -1;
    OK(cuIpcGetMemHandle(&ipc_handle, address));
    return dup(STDERR_FILENO);
}

static uint64_t keep_descriptor(int descriptor) {
    return (uint64_t)descriptor;
}

static void drop_descriptor(uint64_t kept) {
    MUST(close((int)kept) == 0);
}

static uint64_t keep_handle(int descriptor) {
    CUmemGenericAllocationHandle handle;
    OK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)descriptor, BY_DESCRIPTOR));
    MUST(close(descriptor) == 0);
    return handle;
}

static void drop_handle(uint64_t kept) {
    OK(cuMemRelease(kept));
}

static uint64_t keep_mapping(int descriptor) {
    CUmemGenericAllocationHandle handle = keep_handle(descriptor);
    CUdeviceptr address;
    OK(cuMemAddressReserve(&address, PIECE, 0, 0, 0));
    OK(cuMemMap(address, PIECE, 0, handle, 0));
    OK(cuMemRelease(handle));
    return address;
}

static void drop_mapping(uint64_t kept) {
    OK(cuMemUnmap(kept, PIECE));
}

/* As a part of the memory, which keeps the whole. */
static uint64_t keep_external(int descriptor) {
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC from = {
        .type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .handle.fd = descriptor, .size = 2 * MIB};
    CUexternalMemory memory;
    OK(cuImportExternalMemory(&memory, &from));
    return (uintptr_t)memory;
}

static void drop_external(uint64_t kept) {
    OK(cuDestroyExternalMemory((CUexternalMemory)(uintptr_t)kept));
}

static uint64_t keep_pool(int descriptor) {
    CUmemoryPool pool;
    OK(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)descriptor, BY_DESCRIPTOR, 0));
    MUST(close(descriptor) == 0);
    return (uintptr_t)pool;
}

static void drop_pool(uint64_t kept) {
    OK(cuMemPoolDestroy((CUmemoryPool)(uintptr_t)kept));
}

static uint64_t keep_ipc(int descriptor) {
    CUdeviceptr address;
    MUST(close(descriptor) == 0);
    OK(cuIpcOpenMemHandle_v2(&address, ipc_handle, LAZY_PEER_ACCESS));
    return address;
}

static void drop_ipc(uint64_t kept) {
    OK(cuIpcCloseMemHandle(kept));
}

static const struct way {
    const char *name;
    int (*make)(void);
    uint64_t (*keep)(int descriptor);
    void (*drop)(uint64_t kept);
    bool with_context; /* of the keeper: it keeps while the maker lives */
} ways[] = {
    {"descriptor", make_physical, keep_descriptor, drop_descriptor, false},
    {"handle", make_physical, keep_handle, drop_handle, true},
    {"mapping", make_physical, keep_mapping, drop_mapping, true},
    {"external", make_physical, keep_external, drop_external, true},
    {"pool-descriptor", make_pool, keep_descriptor, drop_descriptor, false},
    {"pool", make_pool, keep_pool, drop_pool, true},
    {"dma-buf", make_dma_buf, keep_descriptor, drop_descriptor, false},
    {"ipc", make_ipc, keep_ipc, drop_ipc, true},
};

struct maker {
    pid_t pid;
    int channel;
};

static void expect(int channel, char wanted) {
    char byte;
    MUST(read(channel, &byte, 1) == 1 && byte == wanted);
}

static void tell(int channel, char byte) {
    MUST(write(channel, &byte, 1) == 1);
}

/* A process that makes a piece when told to. Started before this one uses CUDA, which does not survive a fork. */
static struct maker start_maker(const struct way *way) {
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    pid_t pid = fork_child();
    if (pid != 0) {
        close(ends[1]);
        return (struct maker){pid, ends[0]};
    }
    char byte;
    close(ends[0]);
    int descriptor = read(ends[1], &byte, 1) == 1 && begin_on(0) ? way->make() : -1;
    if (descriptor >= 0) {
        MUST(descriptor_send(ends[1], descriptor));
        MUST(write(ends[1], &ipc_handle, sizeof ipc_handle) == sizeof ipc_handle);
        expect(ends[1], 'e');
    }
    _exit(0);
}

/* What is left of a maker's piece when it has ended is kept. False if it was refused. An IPC handle can only be opened
 * while its maker lives. */
static bool adopt(const struct way *way, struct maker maker, bool killed, uint64_t *kept) {
    bool early = way->make == make_ipc;
    int status;
    tell(maker.channel, 'm');
    int descriptor = descriptor_receive(maker.channel);
    bool made = descriptor >= 0;
    if (made)
        MUST(read(maker.channel, &ipc_handle, sizeof ipc_handle) == sizeof ipc_handle);
    if (made && early)
        *kept = way->keep(descriptor);
    if (made && killed)
        kill(maker.pid, SIGKILL);
    else if (made)
        tell(maker.channel, 'e');
    MUST(waitpid(maker.pid, &status, 0) == maker.pid && (made ? killed == WIFSIGNALED(status) : status == 0));
    if (made && !early)
        *kept = way->keep(descriptor);
    return made;
}

/* Allocates all that is left, and gives it back. */
static size_t take_all(void) {
    CUdeviceptr taken[512];
    unsigned count = 0;
    while (count < 512 && cuMemAlloc_v2(&taken[count], 2 * MIB) == CUDA_SUCCESS)
        count++;
    for (unsigned i = 0; i < count; i++)
        OK(cuMemFree_v2(taken[i]));
    return count * 2 * MIB;
}

static void orphans_of(const struct way *way) {
    struct maker makers[PIECES + 1];
    uint64_t kept[PIECES + 1];
    int count = 0;
    for (int i = 0; i <= PIECES; i++)
        makers[i] = start_maker(way);
    if (way->with_context)
        begin();
    while (count <= PIECES && adopt(way, makers[count], count % 2 != 0, &kept[count]))
        count++;
    /* A maker needs a context of its own, and a pool room to grow. */
    int most = PIECES - (way->with_context ? 1 : 0), least = way->make == make_pool ? most - 1 : most;
    if (count < least || count > most) {
        fprintf(stderr, "passing: %s: %d pieces were granted, not %d\n", way->name, count, most);
        _exit(1);
    }
    if (!way->with_context)
        begin();
    size_t left = 448 * MIB - (size_t)count * PIECE;
    MUST(free_bytes() == left && take_all() == left);
    for (int i = 0; i < count; i++)
        way->drop(kept[i]);
    MUST(free_bytes() == 448 * MIB && take_all() == 448 * MIB);
}

static int orphans(const char *name) {
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
        if (strcmp(ways[i].name, name) == 0) {
            orphans_of(&ways[i]);
            return 0;
        }
    return 2;
}

/* --- much that is passed on --------------------------------------------------------------------------------------- */

static CUdeviceptr map_piece(CUmemGenericAllocationHandle handle) {
    static const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}, .flags = 3};
    CUdeviceptr address;
    OK(cuMemAddressReserve(&address, 2 * MIB, 0, 0, 0));
    OK(cuMemMap(address, 2 * MIB, 0, handle, 0));
    OK(cuMemSetAccess(address, 2 * MIB, &access, 1));
    return address;
}

static void import_many(int channel, int count) {
    static CUdeviceptr mapped[1024];
    begin();
    tell(channel, 'b');
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < count; i++) {
            CUmemGenericAllocationHandle handle = keep_handle(descriptor_receive(channel));
            mapped[i] = map_piece(handle);
            OK(cuMemRelease(handle));
        }
        tell(channel, 'm');
        expect(channel, 'u');
        for (int i = 0; i < count; i++)
            OK(cuMemUnmap(mapped[i], 2 * MIB));
        tell(channel, 'f');
    }
    expect(channel, 'e');
    _exit(0);
}

/* Starts another process that does what is passed on to it. */
static int start(void (*there)(int channel, int count), int count) {
    int ends[2];
    MUST(count <= 1024 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    if (fork_child() == 0) {
        close(ends[0]);
        there(ends[1], count);
    }
    close(ends[1]);
    return ends[0];
}

static int finish(void) {
    int status;
    MUST(wait(&status) > 0 && status == 0);
    return 0;
}

static int many(int count) {
    static CUmemGenericAllocationHandle handles[1024];
    int channel = start(import_many, count), descriptor;
    begin();
    expect(channel, 'b');
    size_t before = free_bytes(), taken = (size_t)count * 2 * MIB;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < count; i++) {
            OK(cuMemCreate(&handles[i], 2 * MIB, &properties, 0));
            OK(cuMemExportToShareableHandle(&descriptor, handles[i], BY_DESCRIPTOR, 0));
            MUST(descriptor_send(channel, descriptor));
        }
        expect(channel, 'm');
        MUST(free_bytes() == before - taken);
        for (int i = 0; i < count; i++)
            OK(cuMemRelease(handles[i]));
        MUST(free_bytes() == before - taken); /* the other process has it */
        tell(channel, 'u');
        expect(channel, 'f');
        MUST(free_bytes() == before);
    }
    tell(channel, 'e');
    return finish();
}

static void open_small(int channel, int count) {
    static CUdeviceptr opened[1024];
    static CUipcMemHandle handle;
    begin();
    tell(channel, 'b');
    for (int i = 0; i < count; i++) {
        MUST(read(channel, &handle, sizeof handle) == sizeof handle);
        OK(cuIpcOpenMemHandle_v2(&opened[i], handle, LAZY_PEER_ACCESS));
        tell(channel, 'o');
    }
    expect(channel, 'c');
    for (int i = 0; i < count; i++)
        OK(cuIpcCloseMemHandle(opened[i]));
    tell(channel, 'd');
    expect(channel, 'e');
    _exit(0);
}

static int small(int count) {
    static CUdeviceptr made[1024];
    int channel = start(open_small, count);
    begin();
    expect(channel, 'b');
    size_t empty = free_bytes();
    for (int i = 0; i < count; i++)
        OK(cuMemAlloc_v2(&made[i], 4096));
    size_t before = free_bytes();
    for (int i = 0; i < count; i++) {
        CUipcMemHandle handle;
        OK(cuIpcGetMemHandle(&handle, made[i]));
        MUST(write(channel, &handle, sizeof handle) == sizeof handle);
        expect(channel, 'o');
        MUST(free_bytes() == before);
    }
    for (int i = 0; i < count; i++)
        OK(cuMemFree_v2(made[i]));
    MUST(free_bytes() == before + 2 * MIB); /* the other process has the blocks, and nobody needs the reserve */
    tell(channel, 'c');
    expect(channel, 'd');
    MUST(free_bytes() == empty);
    tell(channel, 'e');
    return finish();
}

/* --- dma-bufs ----------------------------------------------------------------------------------------------------- */

static int dma_buf_of(CUdeviceptr address, size_t size) {
    int descriptor;
    OK(cuMemGetHandleForAddressRange(&descriptor, address, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    return descriptor;
}

static int dma_bufs(void) {
    CUmemGenericAllocationHandle handles[3];
    CUdeviceptr large, small, other, range;
    begin();
    size_t empty = free_bytes();
    OK(cuMemAlloc_v2(&large, 8 * MIB));
    OK(cuMemAlloc_v2(&small, 64 << 10));
    OK(cuMemAlloc_v2(&other, 64 << 10));
    OK(cuMemAddressReserve(&range, 6 * MIB, 0, 0, 0));
    for (int i = 0; i < 3; i++) {
        OK(cuMemCreate(&handles[i], 2 * MIB, &properties, 0));
        OK(cuMemMap(range + (size_t)i * 2 * MIB, 2 * MIB, 0, handles[i], 0));
    }
    size_t before = free_bytes();
    MUST(before == empty - 18 * MIB); /* with the reserve for small allocations */
    int whole = dma_buf_of(large, 8 * MIB), part = dma_buf_of(large + MIB, MIB), packed = dma_buf_of(small, 64 << 10),
        several = dma_buf_of(range + MIB, 5 * MIB);
    MUST(free_bytes() == before);
    OK(cuMemFree_v2(large));
    OK(cuMemFree_v2(small));
    OK(cuMemFree_v2(other));
    for (int i = 0; i < 3; i++) {
        OK(cuMemUnmap(range + (size_t)i * 2 * MIB, 2 * MIB));
        OK(cuMemRelease(handles[i]));
    }
    MUST(free_bytes() == before + 2 * MIB && close(packed) == 0); /* the reserve */
    MUST(free_bytes() == before + 4 * MIB && close(whole) == 0);
    MUST(free_bytes() == before + 4 * MIB && close(several) == 0);
    MUST(free_bytes() == before + 10 * MIB && close(part) == 0);
    MUST(free_bytes() == empty);
    return 0;
}

/* --- memory of another GPU ---------------------------------------------------------------------------------------- */

/* The maker's claims are not this process's, so this one pays: on the GPU of the memory. */
static int far(const char *directory) {
    size_t before[2], after[2], total;
    CUcontext contexts[2];
    CUdeviceptr address;
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    if (fork_child() == 0) {
        CUdeviceptr made;
        char byte;
        OK(cuInit(0));
        MUST(begin_on(1));
        OK(cuMemAlloc_v2(&made, 40 * MIB));
        OK(cuIpcGetMemHandle(&ipc_handle, made));
        MUST(write(ends[1], &ipc_handle, sizeof ipc_handle) == sizeof ipc_handle && read(ends[1], &byte, 1) == 1);
        _exit(0);
    }
    MUST(setenv("TRANCHE_REGIONS", directory, 1) == 0);
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&contexts[1], 0, 1));
    OK(cuMemGetInfo_v2(&before[1], &total));
    OK(cuCtxCreate_v2(&contexts[0], 0, 0));
    OK(cuMemGetInfo_v2(&before[0], &total));
    MUST(read(ends[0], &ipc_handle, sizeof ipc_handle) == sizeof ipc_handle);
    OK(cuIpcOpenMemHandle_v2(&address, ipc_handle, LAZY_PEER_ACCESS));
    OK(cuMemGetInfo_v2(&after[0], &total));
    OK(cuCtxSetCurrent(contexts[1]));
    OK(cuMemGetInfo_v2(&after[1], &total));
    MUST(after[0] == before[0] && after[1] == before[1] - 40 * MIB);
    OK(cuCtxSetCurrent(contexts[0]));
    OK(cuIpcCloseMemHandle(address));
    OK(cuCtxSetCurrent(contexts[1]));
    OK(cuMemGetInfo_v2(&after[1], &total));
    MUST(after[1] == before[1] && write(ends[0], "", 1) == 1);
    return finish();
}

int main(int argc, char **argv) {
    const char *scenario = argc > 1 ? argv[1] : "";
    if (strcmp(scenario, "orphans") == 0 && argc > 2)
        return orphans(argv[2]);
    if (strcmp(scenario, "many") == 0 && argc > 2)
        return many(atoi(argv[2]));
    if (strcmp(scenario, "small") == 0 && argc > 2)
        return small(atoi(argv[2]));
    if (strcmp(scenario, "dma-buf") == 0)
        return dma_bufs();
    if (strcmp(scenario, "far") == 0 && argc > 2)
        return far(argv[2]);
    fprintf(stderr, "passing: no such scenario\n");
    return 2;
}
