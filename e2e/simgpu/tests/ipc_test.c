/* Memory that goes from process to process: who holds it, who pays, and that it comes back whoever dies. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "harness.h"
#include "shared_objects.h"

/* ---- Carrying ---- */

static int wire[2]; /* of a test and its workers */

static void make_wire(void) {
    CHECK_INT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, wire), 0);
}

/* Passes a descriptor and keeps it not. False: there are too many on their way already. */
static bool try_send_fd(int socket, int fd) {
    char byte = 'f', control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec io = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    bool sent;

    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    sent = sendmsg(socket, &message, MSG_DONTWAIT) == 1;
    close(fd);
    return sent;
}

static void send_fd(int socket, int fd) {
    CHECK(try_send_fd(socket, fd));
}

/* -1: none is there. */
static int try_receive_fd(int socket) {
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec io = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    int fd = -1;

    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) == 1 && CMSG_FIRSTHDR(&message) != NULL)
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
    return fd;
}

static int receive_fd(int socket) {
    int fd = try_receive_fd(socket);

    CHECK(fd >= 0);
    return fd;
}

static CUmemGenericAllocationHandle create(uint64_t size) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemGenericAllocationHandle handle = 0;

    OK(cuMemCreate(&handle, size, &prop, 0));
    return handle;
}

static int export(CUmemGenericAllocationHandle handle) {
    int fd = -1;

    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    return fd;
}

static CUmemGenericAllocationHandle import(int fd) {
    CUmemGenericAllocationHandle handle = 0;

    OK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    return handle;
}

static CUdeviceptr map(CUmemGenericAllocationHandle handle, uint64_t size) {
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr address = 0;

    OK(cuMemAddressReserve(&address, size, 0, 0, 0));
    OK(cuMemMap(address, size, 0, handle, 0));
    OK(cuMemSetAccess(address, size, &access, 1));
    return address;
}

/* ---- By file descriptor ---- */

static void export_by_fd(void *arg) {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    char text[8] = "";

    (void)arg;
    setenv("SIMGPU_LABEL", "maker", 1);
    context_on(0);
    handle = create(100 * MIB);
    address = map(handle, 100 * MIB);
    OK(cuMemcpyHtoD_v2(address + 3 * MIB, "before", 7));
    send_fd(wire[1], export(handle));
    say('x');
    if (hear() != 'c')
        return;
    OK(cuMemcpyDtoH_v2(text, address, 6));
    CHECK(strcmp(text, "after") == 0);
    say('c');
    hear();
}

static void memory_survives_who_made_it(void) {
    CUmemGenericAllocationHandle handle;
    struct worker maker;
    CUmemAllocationProp prop;
    CUdeviceptr address;
    char text[8] = "";

    make_wire();
    maker = worker_start(export_by_fd, NULL);
    worker_hear(&maker);
    context_on(0);
    handle = import(receive_fd(wire[0]));
    OK(cuMemGetAllocationPropertiesFromHandle(&prop, handle));
    CHECK_INT(prop.location.id, 0);
    CHECK_INT(prop.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    address = map(handle, 100 * MIB);
    OK(cuMemcpyDtoH_v2(text, address + 3 * MIB, 7));
    CHECK(strcmp(text, "before") == 0);
    OK(cuMemcpyHtoD_v2(address, "after", 6));
    worker_tell(&maker, 'c');
    CHECK_INT(worker_hear(&maker), 'c');
    CHECK_INT(look("test").used[0], 100 * MIB + 2 * GPU0_CONTEXT);
    CHECK_INT(look("test").group_bytes[0], GPU0_CONTEXT);
    CHECK_INT(look("maker").group_bytes[0], 100 * MIB + GPU0_CONTEXT);
    CHECK_INT(look("maker").sum[0].bytes, 2 * GPU0_CONTEXT);
    worker_kill(&maker, SIGKILL);
    CHECK_INT(look("maker").group_bytes[0], 100 * MIB);
    CHECK_INT(look("maker").group_processes, 0);
    CHECK_INT(look("maker").group_peak[0], 100 * MIB + GPU0_CONTEXT);
    OK(cuMemcpyDtoH_v2(text, address + 3 * MIB, 7));
    CHECK(strcmp(text, "before") == 0);
    OK(cuMemRelease(handle));
    CHECK_INT(look("maker").group_bytes[0], 100 * MIB);
    OK(cuMemUnmap(address, 100 * MIB));
    CHECK_INT(look("maker").group_bytes[0], 0);
    CHECK_INT(look("test").used[0], GPU0_CONTEXT);
}

/* Nobody but a message that nobody has read yet holds the memory. */
static void a_descriptor_in_flight_keeps_it_alive(void) {
    struct worker maker;
    int fd;

    make_wire();
    maker = worker_start(export_by_fd, NULL);
    worker_hear(&maker);
    worker_kill(&maker, SIGKILL);
    CHECK_INT(look("maker").used[0], 100 * MIB);
    fd = receive_fd(wire[0]);
    CHECK_INT(look("maker").used[0], 100 * MIB);
    close(fd);
    CHECK_INT(look("maker").used[0], 0);
}

static void importers_pay_nothing(void) {
    CUmemGenericAllocationHandle handle, again[3];
    int fd;

    OK(cuInit(0));
    handle = create(GPU0_BYTES);
    CHECK_INT(look("test").used[0], GPU0_BYTES);
    fd = export(handle);
    CHECK_INT(look("test").used[0], GPU0_BYTES);
    CHECK_INT(look("test").group_peak[0], GPU0_BYTES);
    CHECK_INT(look("test").sum[0].bytes, 0);
    for (int i = 0; i < 3; i++)
        again[i] = import(dup(fd));
    CHECK_INT(look("test").used[0], GPU0_BYTES);
    OK(cuMemRelease(handle));
    for (int i = 0; i < 3; i++) {
        CHECK_INT(look("test").used[0], GPU0_BYTES);
        OK(cuMemRelease(again[i]));
    }
    CHECK_INT(look("test").used[0], GPU0_BYTES);
    close(fd);
    CHECK_INT(look("test").used[0], 0);
}

static void bad_handles_are_refused(void) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemGenericAllocationHandle handle;
    CUipcMemHandle ipc = {{0}};
    CUdeviceptr address;
    int fd;

    context_on(0);
    OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    CHECK_INT(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0), CUDA_ERROR_NOT_SUPPORTED);
    for (intptr_t i = 0; i < 8; i++)
        CHECK_INT(cuMemImportFromShareableHandle(&handle, (void *)i, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                  CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuIpcOpenMemHandle_v2(&address, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_HANDLE);
    CHECK_INT(cuIpcGetMemHandle(&ipc, 4096), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuIpcCloseMemHandle(4096), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAllocManaged(&address, 4 * MIB, CU_MEM_ATTACH_GLOBAL));
    CHECK_INT(cuIpcGetMemHandle(&ipc, address), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAlloc_v2(&address, 100));
    OK(cuIpcGetMemHandle(&ipc, address));
    CHECK_INT(cuIpcOpenMemHandle_v2(&address, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_INT(cuIpcOpenMemHandle_v2(&address, ipc, 0), CUDA_ERROR_INVALID_VALUE);
}

/* ---- Legacy IPC ---- */

struct ipc_owner {
    size_t size;
    const char *text;
};

static void own(void *arg) {
    const struct ipc_owner *what = arg;
    CUdeviceptr before, address;
    CUipcMemHandle handle;
    CUcontext context = context_on(0);
    char order;

    OK(cuMemAlloc_v2(&before, 1000));
    OK(cuMemAlloc_v2(&address, what->size));
    OK(cuMemcpyHtoD_v2(address, what->text, strlen(what->text) + 1));
    OK(cuIpcGetMemHandle(&handle, address));
    CHECK_INT(write(wire[1], &handle, sizeof(handle)), sizeof(handle));
    say('x');
    while ((order = hear()) != 'e' && order != 0) {
        if (order == 'f')
            OK(cuMemFree_v2(address));
        if (order == 'd')
            OK(cuCtxDestroy_v2(context));
        say(order);
    }
}

static CUipcMemHandle receive_handle(void) {
    CUipcMemHandle handle = {{0}};

    CHECK_INT(read(wire[0], &handle, sizeof(handle)), sizeof(handle));
    return handle;
}

static void ask(struct worker *worker, char what) {
    worker_tell(worker, what);
    CHECK_INT(worker_hear(worker), what);
}

static void opened_memory_is_the_owners(void) {
    struct ipc_owner what = {20 * MIB, "hello"};
    CUdeviceptr address, again;
    CUipcMemHandle handle;
    struct worker owner;
    char text[8] = "";

    make_wire();
    owner = worker_start(own, &what);
    worker_hear(&owner);
    handle = receive_handle();
    CHECK_INT(look("test").used[0], GPU0_CONTEXT + 22 * MIB);
    CHECK_INT(look("test").sum[0].bytes, GPU0_CONTEXT + 2 * MIB);
    context_on(0);
    OK(cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(cuIpcOpenMemHandle(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CHECK_INT(again, address);
    OK(cuMemcpyDtoH_v2(text, address, 6));
    CHECK(strcmp(text, "hello") == 0);
    CHECK_INT(cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(look("test").used[0], 2 * GPU0_CONTEXT + 22 * MIB);
    OK(cuIpcCloseMemHandle(address));
    OK(cuMemcpyDtoH_v2(text, address, 6));
    ask(&owner, 'f');
    CHECK_INT(look("test").used[0], 2 * GPU0_CONTEXT + 22 * MIB);
    OK(cuIpcCloseMemHandle(address));
    CHECK_INT(look("test").used[0], 2 * GPU0_CONTEXT + 2 * MIB);
    CHECK_INT(cuIpcCloseMemHandle(address), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_HANDLE);
    worker_join(&owner);
}

/* The whole block goes, with what else is in it. */
static void small_memory_is_shared_by_the_block(void) {
    struct ipc_owner what = {3000, "little"};
    CUcontext context;
    CUdeviceptr address;
    CUipcMemHandle handle;
    struct worker owner;
    char text[8] = "";

    make_wire();
    owner = worker_start(own, &what);
    worker_hear(&owner);
    handle = receive_handle();
    context = context_on(0);
    OK(cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(cuMemcpyDtoH_v2(text, address, 7));
    CHECK(strcmp(text, "little") == 0);
    ask(&owner, 'f');
    CHECK_INT(look("test").used[0], 2 * GPU0_CONTEXT + 2 * MIB);
    ask(&owner, 'd');
    CHECK_INT(look("test").used[0], GPU0_CONTEXT + 2 * MIB);
    worker_kill(&owner, SIGKILL);
    CHECK_INT(look("test").used[0], GPU0_CONTEXT + 2 * MIB);
    OK(cuMemcpyDtoH_v2(text, address, 7));
    CHECK(strcmp(text, "little") == 0);
    OK(cuCtxDestroy_v2(context));
    CHECK_INT(look("test").used[0], 0);
}

static void a_dead_owner_leaves_nothing_to_open(void) {
    struct ipc_owner what = {20 * MIB, "hello"};
    CUipcMemHandle handle;
    CUdeviceptr address;
    struct worker owner;

    make_wire();
    owner = worker_start(own, &what);
    worker_hear(&owner);
    handle = receive_handle();
    context_on(0);
    worker_kill(&owner, SIGKILL);
    CHECK_INT(cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_HANDLE);
    CHECK_INT(look("test").used[0], GPU0_CONTEXT);
}

/* ---- Events ---- */

static void record_event(void *arg) {
    CUevent event;
    CUipcEventHandle handle;

    (void)arg;
    context_on(0);
    OK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    OK(cuIpcGetEventHandle(&handle, event));
    CHECK_INT(write(wire[1], &handle, sizeof(handle)), sizeof(handle));
    say('x');
    while (hear() == 'r') {
        OK(cuEventRecord(event, NULL));
        OK(cuEventSynchronize(event));
        say('r');
    }
}

static void an_event_is_seen_by_others(void) {
    CUipcEventHandle handle;
    struct worker worker;
    CUevent event, plain;

    make_wire();
    worker = worker_start(record_event, NULL);
    worker_hear(&worker);
    CHECK_INT(read(wire[0], &handle, sizeof(handle)), sizeof(handle));
    context_on(0);
    OK(cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
    CHECK_INT(cuIpcGetEventHandle(&handle, plain), CUDA_ERROR_INVALID_VALUE);
    OK(cuIpcOpenEventHandle(&event, handle));
    OK(cuEventQuery(event));
    ask(&worker, 'r');
    OK(cuEventSynchronize(event));
    OK(cuStreamWaitEvent(NULL, event, 0));
    OK(cuEventRecord(event, NULL));
    OK(cuEventSynchronize(event));
    worker_kill(&worker, SIGKILL);
    OK(cuEventQuery(event));
    OK(cuEventDestroy_v2(event));
}

/* ---- Multicast objects, external memory ---- */

static void a_team_of_one_process_each(void) {
    CUmulticastObjectProp prop = {
        .numDevices = 1, .size = 2 * MIB, .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
    CUmemGenericAllocationHandle multicast, same, memory;
    int fd;

    OK(cuInit(0));
    OK(cuMulticastCreate(&multicast, &prop));
    fd = export(multicast);
    same = import(fd);
    OK(cuMulticastAddDevice(same, 0));
    CHECK_INT(cuMulticastAddDevice(multicast, 0), CUDA_ERROR_INVALID_VALUE);
    memory = create(2 * MIB);
    OK(cuMulticastBindMem(multicast, 0, memory, 0, 2 * MIB, 0));
    OK(cuMemRelease(memory));
    OK(cuMemRelease(same));
    CHECK_INT(look("test").used[0], 2 * MIB);
    OK(cuMemRelease(multicast));
    CHECK_INT(look("test").used[0], 0);
}

static void external_memory_is_the_exporters(void) {
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC from = {.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .size = 100 * MIB};
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC part = {.offset = 3 * MIB, .size = 5 * MIB};
    CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC image = {
        .arrayDesc = {.Width = 64, .Height = 64, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1}, .numLevels = 2};
    CUexternalMemory external;
    CUmipmappedArray mipmap;
    struct worker maker;
    CUdeviceptr address;
    char text[8] = "";

    make_wire();
    maker = worker_start(export_by_fd, NULL);
    worker_hear(&maker);
    context_on(0);
    from.handle.fd = receive_fd(wire[0]);
    from.size = 101 * MIB;
    CHECK_INT(cuImportExternalMemory(&external, &from), CUDA_ERROR_INVALID_VALUE);
    from.size = 100 * MIB;
    OK(cuImportExternalMemory(&external, &from));
    worker_kill(&maker, SIGKILL);
    OK(cuExternalMemoryGetMappedBuffer(&address, external, &part));
    OK(cuMemcpyDtoH_v2(text, address, 7));
    CHECK(strcmp(text, "before") == 0);
    part.offset = 96 * MIB;
    CHECK_INT(cuExternalMemoryGetMappedBuffer(&address, external, &part), CUDA_ERROR_INVALID_VALUE);
    OK(cuExternalMemoryGetMappedMipmappedArray(&mipmap, external, &image));
    OK(cuMipmappedArrayDestroy(mipmap));
    image.offset = 100 * MIB - 512;
    CHECK_INT(cuExternalMemoryGetMappedMipmappedArray(&mipmap, external, &image), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(look("test").used[0], GPU0_CONTEXT + 100 * MIB);
    OK(cuDestroyExternalMemory(external));
    CHECK_INT(cuDestroyExternalMemory(external), CUDA_ERROR_INVALID_HANDLE);
    CHECK_INT(look("test").used[0], GPU0_CONTEXT + 100 * MIB);
    OK(cuMemFree_v2(address));
    CHECK_INT(look("test").used[0], GPU0_CONTEXT);
}

static void reap_for_ever(void *unused) {
    (void)unused;
    CHECK_INT(sim_open_all(), 0);
    for (say('r');;)
        sim_reap();
}

/* A descriptor's end is seen by others at once: so the memory behind it counts no more, whoever is about to notice. */
static void the_peak_does_not_count_what_others_reap(void) {
    struct worker workers[4];

    context_on(0);
    for (int i = 0; i < 4; i++)
        workers[i] = worker_start(reap_for_ever, NULL);
    for (int i = 0; i < 4; i++)
        worker_hear(&workers[i]);
    for (int i = 0; i < 20000; i++) {
        CUmemGenericAllocationHandle handle = create(4 * MIB);
        int fd = export(handle);

        OK(cuMemRelease(handle));
        close(fd);
        handle = create(4 * MIB);
        OK(cuMemRelease(handle));
    }
    CHECK_INT(look("test").group_peak[0], GPU0_CONTEXT + 4 * MIB);
    for (int i = 0; i < 4; i++)
        worker_kill(&workers[i], SIGKILL);
}

/* ---- Death at any moment ---- */

#define MAKERS 6

/* Makes, exports, imports, frees at random, until it is killed. */
static void share_at_random(void *arg) {
    CUmemGenericAllocationHandle handles[8] = {0};
    CUdeviceptr pointers[4] = {0};
    unsigned seed = (unsigned)getpid();

    (void)arg;
    if (cuInit(0) != CUDA_SUCCESS)
        return;
    for (CUcontext context; cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS;)
        usleep(1000);
    for (;;) {
        CUmemGenericAllocationHandle *h = &handles[rand_r(&seed) % 8];
        CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
        CUdeviceptr *p = &pointers[rand_r(&seed) % 4];
        CUipcMemHandle ipc;

        if (*h != 0)
            OK(cuMemRelease(*h));
        *h = 0;
        if (*p != 0)
            OK(cuMemFree_v2(*p));
        *p = 0;
        if (cuMemCreate(h, 2 * MIB * (1 + (unsigned)rand_r(&seed) % 4), &prop, 0) != CUDA_SUCCESS)
            *h = 0;
        else if (rand_r(&seed) % 2)
            try_send_fd(wire[1], export(*h));
        if (rand_r(&seed) % 2) {
            int fd = try_receive_fd(wire[0]);

            if (fd >= 0 && *h != 0)
                OK(cuMemRelease(*h));
            if (fd >= 0)
                *h = import(fd);
        } else if (cuMemAlloc_v2(p, 2 * MIB * (1 + (unsigned)rand_r(&seed) % 4)) == CUDA_SUCCESS) {
            OK(cuIpcGetMemHandle(&ipc, *p));
        } else {
            *p = 0;
        }
    }
}

static void killing_sharers_at_random_loses_nothing(void) {
    struct worker workers[MAKERS];
    struct outside o;

    make_wire();
    for (int i = 0; i < MAKERS; i++)
        workers[i] = worker_start(share_at_random, NULL);
    for (int round = 0; round < 60; round++) {
        int victim = rand() % MAKERS;

        usleep(10000);
        worker_kill(&workers[victim], SIGKILL);
        o = look("test");
        CHECK(o.used[0] <= GPU0_BYTES);
        CHECK_INT(o.group_peak[0] <= GPU0_BYTES, 1);
        workers[victim] = worker_start(share_at_random, NULL);
    }
    for (int i = 0; i < MAKERS; i++)
        worker_kill(&workers[i], SIGKILL);
    close(wire[0]);
    close(wire[1]);
    o = look("test");
    CHECK_INT(o.used[0], 0);
    CHECK_INT(o.group_bytes[0], 0);
    CHECK_INT(o.processes, 0);
}

/* Opening by name against the last holder's drop: never a hold on what is gone, never memory left behind. */
static void open_and_close(void *arg) {
    CUipcMemHandle handle;
    uint64_t opened = 0;

    (void)arg;
    context_on(0);
    say('x');
    while (read(wire[0], &handle, sizeof(handle)) == (ssize_t)sizeof(handle) && handle.reserved[0] != 0) {
        CUdeviceptr address;
        CUresult ret = cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
        char byte = 0;

        if (ret == CUDA_SUCCESS) {
            OK(cuMemcpyDtoH_v2(&byte, address, 1));
            CHECK_INT(byte, 7);
            OK(cuIpcCloseMemHandle(address));
            opened++;
        } else {
            CHECK_INT(ret, CUDA_ERROR_INVALID_HANDLE);
        }
    }
    say(opened > 0 ? 'y' : 'n');
    hear();
}

static void opening_races_with_freeing(void) {
    struct worker workers[3];
    CUipcMemHandle handle;

    make_wire();
    for (int i = 0; i < 3; i++) {
        workers[i] = worker_start(open_and_close, NULL);
        worker_hear(&workers[i]);
    }
    context_on(0);
    for (int i = 0; i < 600; i++) {
        CUdeviceptr address;

        OK(cuMemAlloc_v2(&address, 2 * MIB));
        OK(cuMemsetD8_v2(address, 7, 16));
        OK(cuIpcGetMemHandle(&handle, address));
        for (int j = 0; j < 3; j++)
            CHECK_INT(write(wire[1], &handle, sizeof(handle)), sizeof(handle));
        if (i % 3 != 0)
            usleep((unsigned)(rand() % 300));
        OK(cuMemFree_v2(address));
    }
    memset(&handle, 0, sizeof(handle));
    for (int i = 0; i < 3; i++)
        CHECK_INT(write(wire[1], &handle, sizeof(handle)), sizeof(handle));
    for (int i = 0; i < 3; i++)
        CHECK_INT(worker_hear(&workers[i]), 'y');
    CHECK_INT(look("test").used[0], 4 * GPU0_CONTEXT);
    CHECK_INT(look("test").sum[0].bytes, 4 * GPU0_CONTEXT);
    for (int i = 0; i < 3; i++)
        worker_join(&workers[i]);
}

static void *share_in_a_thread(void *arg) {
    (void)arg;
    for (int i = 0; i < 200; i++) {
        CUmemGenericAllocationHandle handle = create(2 * MIB), other = import(export(handle));

        OK(cuMemRelease(handle));
        OK(cuMemRelease(other));
    }
    return NULL;
}

static void threads_share_side_by_side(void) {
    pthread_t threads[4];

    OK(cuInit(0));
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, share_in_a_thread, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    CHECK_INT(look("test").used[0], 0);
}

static void call_in_child(void *handle) {
    CHECK_INT(cuMemRelease(*(CUmemGenericAllocationHandle *)handle), CUDA_ERROR_NOT_INITIALIZED);
    say('c');
}

/* It does not take its parent's memory for its own, whatever it calls, and its end takes nothing from the parent. */
static void a_forked_child_has_none_of_it(void) {
    CUmemGenericAllocationHandle handle;
    struct worker child;

    OK(cuInit(0));
    handle = create(10 * MIB);
    close(export(handle));
    child = worker_start(call_in_child, &handle);
    worker_join(&child);
    CHECK_INT(look("test").used[0], 10 * MIB);
    OK(cuMemRelease(handle));
    CHECK_INT(look("test").used[0], 0);
}

static void the_record_tells_what_is_shared(void) {
    CUmemGenericAllocationHandle handle;
    char text[8192];

    OK(cuInit(0));
    handle = create(10 * MIB);
    close(export(handle));
    CHECK_INT(shell(text, sizeof(text), "%s record --json", tool_path), 0);
    CHECK(strstr(text, "\"kind\":\"memory\",\"shared\":true") != NULL);
    CHECK(strstr(text, "\"bytes\":10485760}") != NULL);
    CHECK_INT(shell(text, sizeof(text), "%s record", tool_path), 0);
    CHECK(strstr(text, "made by") != NULL);
    OK(cuMemRelease(handle));
    CHECK_INT(shell(text, sizeof(text), "%s record --json", tool_path), 0);
    CHECK(strstr(text, "\"shared\":[]") != NULL);
}

const struct test ipc_tests[] = {
    {"memory survives who made it", memory_survives_who_made_it},
    {"a descriptor in flight keeps it alive", a_descriptor_in_flight_keeps_it_alive},
    {"importers pay nothing", importers_pay_nothing},
    {"bad handles are refused", bad_handles_are_refused},
    {"opened memory is the owner's", opened_memory_is_the_owners},
    {"small memory is shared by the block", small_memory_is_shared_by_the_block},
    {"a dead owner leaves nothing to open", a_dead_owner_leaves_nothing_to_open},
    {"an event is seen by others", an_event_is_seen_by_others},
    {"a team of one process each", a_team_of_one_process_each},
    {"external memory is the exporter's", external_memory_is_the_exporters},
    {"the peak does not count what others reap", the_peak_does_not_count_what_others_reap},
    {"killing sharers at random loses nothing", killing_sharers_at_random_loses_nothing},
    {"opening races with freeing", opening_races_with_freeing},
    {"threads share side by side", threads_share_side_by_side},
    {"a forked child has none of it", a_forked_child_has_none_of_it},
    {"the record tells what is shared", the_record_tells_what_is_shared},
    {NULL, NULL},
};
