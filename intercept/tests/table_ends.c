/*
 * Passes memory between processes until a table is full or no descriptor is left, and beyond. Linked with libcuda.so.1.
 * Ends when nothing more is granted, or after MADE_MAX pieces, far more than its claim allows. The simulator's record
 * has its peak use.
 *
 *   table_ends exports      keeps only descriptors of memory that it made
 *   table_ends imports      keeps only memory that another process imported and did not map
 *   table_ends blind        the same; that process cannot search for shares: no descriptors, and no access to the claim
 *   table_ends pools        keeps only pools of a dead process that had exported much else
 *   table_ends full         as exports; the claim has no free slot for another share
 */
#include "../driver/cuda_api.h"
#include "../region/region.h"
#include "descriptors.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

CUresult cuInit(unsigned int);
CUresult cuCtxCreate_v2(CUcontext *, unsigned int, CUdevice);
CUresult cuMemCreate(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
CUresult cuMemRelease(CUmemGenericAllocationHandle);
CUresult cuMemExportToShareableHandle(void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType,
                                      unsigned long long);
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemPoolCreate(CUmemoryPool *, const CUmemPoolProps *);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
CUresult cuMemPoolExportToShareableHandle(void *, CUmemoryPool, CUmemAllocationHandleType, unsigned long long);
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *, void *, CUmemAllocationHandleType, unsigned long long);

#define MIB ((size_t)1 << 20)
#define PIECE (4 * MIB)
#define MADE_MAX 220
#define BY_DESCRIPTOR CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

#define MUST(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "table_ends: line %d: not so: %s\n", __LINE__, #condition);                                \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

static void begin(void) {
    CUcontext context;
    MUST(cuInit(0) == CUDA_SUCCESS && cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS);
}

/* Makes a piece and lets go of all of it but a descriptor; -1 if that is refused. */
static int export_piece(size_t bytes) {
    static const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                   .requestedHandleTypes = BY_DESCRIPTOR,
                                                   .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemGenericAllocationHandle handle;
    int descriptor = -1;
    if (cuMemCreate(&handle, bytes, &properties, 0) != CUDA_SUCCESS)
        return -1;
    if (cuMemExportToShareableHandle(&descriptor, handle, BY_DESCRIPTOR, 0) != CUDA_SUCCESS)
        descriptor = -1;
    MUST(cuMemRelease(handle) == CUDA_SUCCESS);
    return descriptor;
}

static int exports(size_t bytes) {
    int made = 0;
    begin();
    while (made < MADE_MAX && export_piece(bytes) >= 0)
        made++;
    return made;
}

/* --- another process ---------------------------------------------------------------------------------------------- */

static pid_t child;
static int channel; /* to the other process */

/* Closes the claim's descriptors and goes where its path leads to nothing. */
static void begin_blind(void) {
    char path[64], target[256];
    MUST(chdir(getenv("TRANCHE_REGIONS")) == 0 && setenv("TRANCHE_REGIONS", ".", 1) == 0);
    begin();
    MUST(chdir("/") == 0);
    for (int descriptor = 3; descriptor < 2048; descriptor++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
        ssize_t length = readlink(path, target, sizeof target);
        if (length > 6 && memcmp(target + length - 6, "/usage", 6) == 0)
            close(descriptor);
    }
}

static CUresult import_piece(int descriptor) {
    CUmemGenericAllocationHandle handle;
    return cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)descriptor, BY_DESCRIPTOR);
}

static CUresult import_pool(int descriptor) {
    CUmemoryPool pool;
    return cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)descriptor, BY_DESCRIPTOR, 0);
}

/* Another process, which imports what comes and answers whether that was granted, and in the end allocates what it can.
 * Before this one has begun. */
static void start_importer(void (*begin_there)(void), CUresult (*import)(int descriptor)) {
    CUdeviceptr address;
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    child = fork();
    channel = ends[child == 0];
    close(ends[child != 0]);
    if (child != 0)
        return;
    begin_there();
    for (int descriptor; (descriptor = descriptor_receive(channel)) >= 0;) {
        char granted = import(descriptor) == CUDA_SUCCESS;
        MUST(close(descriptor) == 0 && write(channel, &granted, 1) == 1);
    }
    while (cuMemAlloc_v2(&address, PIECE) == CUDA_SUCCESS)
        ;
    _exit(0);
}

static bool was_granted(void) {
    char granted;
    MUST(read(channel, &granted, 1) == 1);
    return granted;
}

static void end_importer(void) {
    close(channel);
    MUST(waitpid(child, NULL, 0) == child);
}

static int imports(void (*begin_there)(void)) {
    int made = 0;
    start_importer(begin_there, import_piece);
    begin();
    for (bool granted = true; granted && made < MADE_MAX; made += granted) {
        int descriptor = export_piece(PIECE);
        if (descriptor < 0)
            break;
        MUST(descriptor_send(channel, descriptor));
        granted = was_granted();
    }
    end_importer();
    return made;
}

/* Exports pieces, then pools with a little in each. */
static void export_pools(void) {
    static const CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                              .handleTypes = BY_DESCRIPTOR,
                                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemoryPool pool;
    CUdeviceptr address;
    int descriptor, pieces = 0;
    begin();
    while (pieces < 64 && export_piece(2 * MIB) >= 0)
        pieces++;
    MUST(pieces == 64);
    while (cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS &&
           cuMemAllocFromPoolAsync(&address, 64, pool, NULL) == CUDA_SUCCESS &&
           cuMemPoolExportToShareableHandle(&descriptor, pool, BY_DESCRIPTOR, 0) == CUDA_SUCCESS) {
        MUST(descriptor_send(channel, descriptor));
        if (!was_granted())
            break;
    }
    _exit(0);
}

static int pools(void) {
    int status;
    start_importer(begin, import_pool);
    pid_t importer = child;
    child = fork();
    if (child == 0)
        export_pools();
    MUST(waitpid(child, &status, 0) == child && status == 0);
    child = importer;
    end_importer();
    return 0;
}

/* --- tables that others have filled ------------------------------------------------------------------------------- */

/* Holds all places of the claim that nobody has, as that many shares of other processes would. */
static int full(const char *usage) {
    int file = open(usage, O_RDWR | O_CLOEXEC);
    MUST(file >= 0 && cuInit(0) == CUDA_SUCCESS); /* which takes a place for this process */
    for (unsigned i = 0; i < REGION_SLOT_COUNT; i++) {
        struct flock lock = {.l_type = F_RDLCK,
                             .l_whence = SEEK_SET,
                             .l_start = REGION_SLOTS_OFFSET + (off_t)i * REGION_SLOT_SIZE,
                             .l_len = REGION_SLOT_SIZE}; /* neighbours become one lock */
        fcntl(file, F_OFD_SETLK, &lock);
    }
    return exports(8 * PIECE);
}

int main(int argc, char **argv) {
    const char *scenario = argc > 1 ? argv[1] : "";
    int made = -1;
    if (strcmp(scenario, "exports") == 0)
        made = exports(PIECE);
    else if (strcmp(scenario, "imports") == 0)
        made = imports(begin);
    else if (strcmp(scenario, "blind") == 0)
        made = imports(begin_blind);
    else if (strcmp(scenario, "pools") == 0)
        made = pools();
    else if (strcmp(scenario, "full") == 0 && argc > 2)
        made = full(argv[2]);
    printf("%d pieces were granted\n", made);
    return made >= 0 ? 0 : 1;
}
