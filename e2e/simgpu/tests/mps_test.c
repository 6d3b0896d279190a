/* MPS: the control daemon, its server and their clients. */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness.h"
#include "health.h"
#include "sharing.h"

static char output[65536];

#define CHECK_OUTPUT(text)                                                                                             \
    do {                                                                                                               \
        if (strstr(output, text) == NULL)                                                                              \
            check_failed(__FILE__, __LINE__, "no %s in: %s", text, output);                                            \
    } while (0)

/* The daemon's program lies beside the tool. */
static const char *program(void) {
    static char path[4096];

    snprintf(path, sizeof(path), "%s", tool_path);
    snprintf(strrchr(path, '/'), 64, "/nvidia-cuda-mps-control");
    return path;
}

/* Runs a command; the exit status, and the answer in `output`. */
__attribute__((format(printf, 1, 2))) static int control(const char *format, ...) {
    char command[256];
    va_list args;

    va_start(args, format);
    vsnprintf(command, sizeof(command), format, args);
    va_end(args);
    return shell(output, sizeof(output), "echo '%s' | %s 2>&1", command, program());
}

static void start_daemon(void) {
    CHECK_INT(shell(output, sizeof(output), "%s -d 2>&1", program()), 0);
}

static void end_daemon(void) {
    CHECK_INT(control("quit -t 0"), 0);
}

static int server_pid(void) {
    CHECK_INT(control("get_server_list"), 0);
    return atoi(output);
}

/* Asks until the answer is this one, for what the daemon learns of in its own time. */
static void wait_for(const char *answer, const char *command, int pid) {
    for (int i = 0; i < 200; i++) {
        control("%s %d", command, pid);
        if (strcmp(output, answer) == 0)
            return;
        sleep_ms(20);
    }
    check_failed(__FILE__, __LINE__, "%s %d goes on answering: %s", command, pid, output);
}

/* ---- Clients: workers who do as they are told, and say the result ---- */

static const char ptx[] = ".version 8.0\n.entry spin_1ms\n.entry spin_300ms\n";

static CUresult launch(const char *name) {
    CUfunction function;
    CUmodule module;
    CUresult ret = cuModuleLoadData(&module, ptx);

    if (ret == CUDA_SUCCESS)
        ret = cuModuleGetFunction(&function, module, name);
    return ret == CUDA_SUCCESS ? cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) : ret;
}

static CUresult launch_many(const char *name, int times) {
    CUresult ret = CUDA_SUCCESS;

    for (int i = 0; i < times && ret == CUDA_SUCCESS; i++)
        ret = launch(name);
    return ret;
}

/* What CUDA results are said as. */
static const struct {
    CUresult result;
    char letter;
} letters[] = {
    {CUDA_SUCCESS, 'y'},
    {CUDA_ERROR_OUT_OF_MEMORY, 'm'},
    {CUDA_ERROR_DEVICE_UNAVAILABLE, 'u'},
    {CUDA_ERROR_NO_DEVICE, 'd'},
    {CUDA_ERROR_LAUNCH_FAILED, 'l'},
    {CUDA_ERROR_MPS_CONNECTION_FAILED, '5'},
    {CUDA_ERROR_MPS_RPC_FAILURE, '6'},
    {CUDA_ERROR_MPS_SERVER_NOT_READY, '7'},
    {CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, '8'},
    {CUDA_ERROR_MPS_CLIENT_TERMINATED, '0'},
};

static char letter(CUresult result) {
    for (size_t i = 0; i < sizeof(letters) / sizeof(letters[0]); i++) {
        if (letters[i].result == result)
            return letters[i].letter;
    }
    fprintf(stderr, "    CUDA result %d\n", result);
    return '?';
}

/* i: cuInit; c: a context on device 0; a: 100 MiB; k: 300 ms of kernels; s: wait for them; l: a minute of kernels */
static void obey(void *environment) {
    CUdeviceptr pointer;
    CUcontext context;
    char what;

    for (char *const *variable = environment; variable != NULL && *variable != NULL; variable++)
        putenv(*variable);
    while ((what = hear()) != 'e') {
        CUresult ret = CUDA_ERROR_UNKNOWN;

        if (what == 'i')
            ret = cuInit(0);
        else if (what == 'c')
            ret = cuCtxCreate_v2(&context, 0, 0);
        else if (what == 'a')
            ret = cuMemAlloc_v2(&pointer, 100 * MIB);
        else if (what == 'k')
            ret = launch("spin_300ms");
        else if (what == 'l')
            ret = launch_many("spin_300ms", 200);
        else if (what == 's')
            ret = cuCtxSynchronize();
        say(letter(ret));
    }
}

static char tell(struct worker *worker, char what) {
    worker_tell(worker, what);
    return worker_hear(worker);
}

static struct worker start_client(void *environment) {
    struct worker worker = worker_start(obey, environment);

    CHECK_INT(tell(&worker, 'i'), 'y');
    CHECK_INT(tell(&worker, 'c'), 'y');
    return worker;
}

static char *outside[] = {"CUDA_MPS_PIPE_DIRECTORY=/nonexistent", NULL};

/* ---- The daemon ---- */

static void the_daemon_and_its_commands(void) {
    struct stat info;

    CHECK_INT(control("get_server_list"), 1);
    CHECK_OUTPUT("Cannot find MPS control daemon process");
    start_daemon();
    CHECK_INT(shell(output, sizeof(output), "%s -f 2>&1", program()), 1);
    CHECK_OUTPUT("An instance of this daemon is already running");
    CHECK_INT(control("get_server_list"), 0);
    CHECK_INT(output[0], '\0');
    control("get_default_active_thread_percentage");
    CHECK(strcmp(output, "100.0\n") == 0);
    control("set_default_active_thread_percentage 12.5");
    control("get_default_active_thread_percentage");
    CHECK(strcmp(output, "12.5\n") == 0);
    control("set_default_active_thread_percentage 101");
    CHECK(strcmp(output, "12.5\n") == 0);
    control("set_default_device_pinned_mem_limit 0 2G");
    control("set_default_device_pinned_mem_limit " GPU1_UUID " 512M");
    control("get_default_device_pinned_mem_limit 0");
    CHECK(strcmp(output, "2G\n") == 0);
    control("get_default_device_pinned_mem_limit " GPU1_UUID);
    CHECK(strcmp(output, "512M\n") == 0);
    control("get_default_device_pinned_mem_limit 1");
    CHECK(strcmp(output, "\n") == 0);
    control("set_default_device_pinned_mem_limit 0 2");
    CHECK_OUTPUT("G or M");
    control("get_server_status 1");
    CHECK_OUTPUT("Server 1 not found");
    control("no_such_thing");
    CHECK(strcmp(output, "Unknown command \"no_such_thing\"\n") == 0);
    CHECK_INT(stat(node_path("pipe/nvidia-cuda-mps-control.pid"), &info), 0);
    CHECK_INT(control("quit"), 0);
    CHECK_INT(stat(node_path("pipe/control"), &info), 0);
    CHECK_INT(control("get_server_list"), 1);
    CHECK_INT(shell(output, sizeof(output), "cat %s", node_path("log/control.log")), 0);
    CHECK_OUTPUT("SIMULATED");
    CHECK_INT(shell(output, sizeof(output), "%s -v", program()), 0);
    CHECK_OUTPUT("SIMULATED");
}

static void a_server_for_its_clients(void) {
    struct worker client = worker_start(obey, NULL);
    char expected[256];
    int server;

    start_daemon();
    control("set_default_active_thread_percentage 50");
    control("set_default_device_pinned_mem_limit 1 300M");
    CHECK_INT(tell(&client, 'i'), 'y');
    CHECK_INT(tell(&client, 'c'), 'y');
    CHECK_INT(tell(&client, 'k'), 'y');
    CHECK_INT(tell(&client, 's'), 'y');
    server = server_pid();
    CHECK(server > 0);
    control("get_server_status %d", server);
    CHECK(strcmp(output, "ACTIVE\n") == 0);
    control("get_client_list %d", server);
    CHECK_INT(atoi(output), client.pid);
    control("ps");
    snprintf(expected, sizeof(expected), "%-10d0     %-10dGPU-7e570000-0000-4000", client.pid, server);
    CHECK_OUTPUT(expected);
    control("get_device_client_list");
    snprintf(expected, sizeof(expected), GPU0_UUID "\n%d\n" GPU1_UUID "\n%d\n", client.pid, client.pid);
    CHECK(strcmp(output, expected) == 0);
    control("get_active_thread_percentage %d", server);
    CHECK(strcmp(output, "50.0\n") == 0);
    control("get_device_pinned_mem_limit %d 1", server);
    CHECK(strcmp(output, "300M\n") == 0);
    control("set_device_pinned_mem_limit %d " GPU0_UUID " 1G", server);
    control("get_device_pinned_mem_limit %d 0", server);
    CHECK(strcmp(output, "1G\n") == 0);
    CHECK_INT(shell(output, sizeof(output), "%s record --json", tool_path), 0);
    snprintf(expected, sizeof(expected), "\"mps_client\":true,\"mps_server_pid\":%d}", server);
    CHECK_OUTPUT(expected);
    CHECK_OUTPUT("\"mps_server\":true}");
    CHECK_INT(look("test").sum[0].context_bytes, 2 * GPU0_CONTEXT); /* the server's and the client's */
    worker_join(&client);
    wait_for("", "get_client_list", server);
    CHECK_INT(server_pid(), server);
    CHECK_INT(look("test").used[0], GPU0_CONTEXT);
    end_daemon();
    CHECK_INT(look("test").used[0], 0);
}

static void gpus_by_the_daemons_numbers(void) {
    static char *second[] = {"CUDA_VISIBLE_DEVICES=1", NULL};
    static char *by_uuid[] = {"CUDA_VISIBLE_DEVICES=" GPU1_UUID, NULL};
    struct worker none = worker_start(obey, second), named = worker_start(obey, by_uuid);
    CUuuid uuid;
    int count;

    setenv("CUDA_VISIBLE_DEVICES", GPU1_UUID, 1);
    start_daemon();
    unsetenv("CUDA_VISIBLE_DEVICES");
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    CHECK_INT(count, 1);
    OK(cuDeviceGetUuid_v2(&uuid, 0));
    CHECK_INT((unsigned char)uuid.bytes[15], 1);
    CHECK_INT(tell(&none, 'i'), 'd');
    CHECK_INT(tell(&named, 'i'), 'y');
    worker_join(&none);
    worker_join(&named);
    end_daemon();
}

/* ---- What a client may have ---- */

static uint64_t free_bytes(void) {
    size_t free, total;

    OK(cuMemGetInfo_v2(&free, &total));
    CHECK_INT(total, 256 * MIB);
    return free;
}

static void the_limit_holds_however_memory_is_taken(void) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle handle, more;
    CUdeviceptr pointer, other;
    CUcontext second;
    int fd;

    start_daemon();
    setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "1=1G,0=256M", 1);
    context_on(0);
    CHECK_INT(free_bytes(), 256 * MIB - GPU0_CONTEXT);
    CHECK_INT(cuMemAlloc_v2(&pointer, 194 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc_v2(&pointer, 100 * MIB));
    CHECK_INT(free_bytes(), 92 * MIB);
    CHECK_INT(cuMemAlloc_v2(&other, 94 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_INT(cuMemAllocAsync(&other, 94 * MIB, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_INT(cuMemCreate(&more, 94 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_INT(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 104 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuCtxCreate_v2(&second, 0, 0));
    CHECK_INT(free_bytes(), 28 * MIB);
    CHECK_INT(cuCtxCreate_v2(&second, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuCtxDestroy_v2(second));
    /* What others could share is this process's as before. */
    OK(cuMemCreate(&handle, 80 * MIB, &prop, 0));
    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CHECK_INT(free_bytes(), 12 * MIB);
    CHECK_INT(cuMemAlloc_v2(&other, 14 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    close(fd);
    OK(cuMemRelease(handle));
    CHECK_INT(free_bytes(), 92 * MIB);
    OK(cuMemFree_v2(pointer));
    OK(cuMemAllocAsync(&other, 180 * MIB, NULL));
    CHECK_INT(look("test").used[0], 256 * MIB + GPU0_CONTEXT); /* the whole limit, and the server's context */
    end_daemon();
}

static void the_smaller_limit_counts(void) {
    static char *wishes[] = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50", NULL};
    struct worker client = worker_start(obey, wishes);
    int server, multiprocessors;

    start_daemon();
    control("set_default_device_pinned_mem_limit 0 128M");
    control("set_default_active_thread_percentage 80");
    CHECK_INT(tell(&client, 'i'), 'y');
    CHECK_INT(tell(&client, 'c'), 'y');
    CHECK_INT(tell(&client, 'a'), 'm');
    worker_join(&client);
    server = server_pid();
    control("set_device_pinned_mem_limit %d 0 200M", server);
    control("set_active_thread_percentage %d 30", server);
    putenv(wishes[0]);
    putenv(wishes[1]);
    context_on(0);
    {
        CUdeviceptr pointer;

        OK(cuMemAlloc_v2(&pointer, 100 * MIB));
        CHECK_INT(cuMemAlloc_v2(&pointer, 100 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    }
    OK(cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
    CHECK_INT(multiprocessors, 4); /* 4.8 of 16 */
    OK(cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 1));
    CHECK_INT(multiprocessors, 8); /* 9.6 of 32 */
    end_daemon();
}

static uint64_t busy_of[2]; /* of clients, and of others */

static int add_busy(const struct sim_process_info *info, void *unused) {
    (void)unused;
    busy_of[info->mps_client ? 0 : 1] += info->gpus[0].busy_ns;
    return 0;
}

/* For how long two clients with so much each had the GPU at once, of the 300 ms of one beside the other, which never stops. */
static uint64_t overlap_ns(const char *percentage) {
    char variable[64];
    char *environment[] = {variable, NULL};
    struct worker busy, client;
    uint64_t overlap;

    snprintf(variable, sizeof(variable), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=%s", percentage);
    start_daemon();
    busy = start_client(environment);
    client = start_client(environment);
    CHECK_INT(tell(&busy, 'l'), 'y');
    CHECK_INT(tell(&client, 'k'), 'y');
    CHECK_INT(tell(&client, 's'), 'y');
    worker_kill(&busy, SIGSTOP);
    sleep_ms(20); /* its turn runs out */
    CHECK_INT(sim_open_all(), 0);
    sim_each_process(add_busy, NULL);
    CHECK(busy_of[0] >= 300000000 && sim_gpu_busy_ns(0) <= busy_of[0]);
    overlap = busy_of[0] - sim_gpu_busy_ns(0);
    worker_kill(&busy, SIGKILL);
    worker_join(&client);
    end_daemon();
    return overlap;
}

static void clients_run_side_by_side(void) {
    uint64_t overlap = overlap_ns("50");

    if (overlap < 50000000)
        check_failed(__FILE__, __LINE__, "only %f ms were both's", (double)overlap / 1e6);
}

static void clients_queue_for_more_than_there_is(void) {
    CHECK_INT(overlap_ns("50.5"), 0);
}

static void the_server_takes_turns_with_others(void) {
    struct worker client = worker_start(obey, NULL), other = worker_start(obey, outside);

    start_daemon();
    CHECK_INT(tell(&client, 'i'), 'y');
    CHECK_INT(tell(&client, 'c'), 'y');
    CHECK_INT(tell(&other, 'i'), 'y');
    CHECK_INT(tell(&other, 'c'), 'y');
    CHECK_INT(tell(&client, 'k'), 'y');
    CHECK_INT(tell(&other, 'k'), 'y');
    CHECK_INT(tell(&client, 's'), 'y');
    CHECK_INT(tell(&other, 's'), 'y');
    CHECK_INT(sim_open_all(), 0);
    sim_each_process(add_busy, NULL);
    CHECK_INT(busy_of[0], 300000000);
    CHECK_INT(busy_of[1], 300000000);
    CHECK(sim_gpu_busy_ns(0) >= 600000000);
    worker_join(&client);
    worker_join(&other);
    end_daemon();
}

/* ---- Who is let in ---- */

/* The GPU of a process that has ended is free when nobody has its memory any more, such as a reader of /proc. */
static void wait_for_context(struct worker *client) {
    char result = 'u';

    for (int i = 0; i < 200 && (result = tell(client, 'c')) == 'u'; i++)
        sleep_ms(20);
    CHECK_INT(result, 'y');
}

static void the_server_is_the_one_process(void) {
    struct worker client = worker_start(obey, NULL), late = worker_start(obey, NULL),
                  other = worker_start(obey, outside), first = worker_start(obey, outside);
    int server;

    CHECK_INT(sim_open_all(), 0);
    CHECK_INT(sim_set(0, SIM_COMPUTE_MODE, SIM_COMPUTE_EXCLUSIVE_PROCESS), 0);
    start_daemon();
    CHECK_INT(tell(&first, 'i'), 'y');
    CHECK_INT(tell(&first, 'c'), 'y');
    CHECK_INT(tell(&client, 'i'), '5'); /* the server has no GPU to offer */
    CHECK_INT(shell(output, sizeof(output), "cat %s", node_path("log/server.log")), 0);
    CHECK_OUTPUT("MPS server failed to start");
    CHECK_OUTPUT("EXCLUSIVE_PROCESS");
    worker_join(&first);
    CHECK_INT(tell(&client, 'i'), 'y');
    CHECK_INT(tell(&client, 'c'), 'y');
    CHECK_INT(tell(&late, 'i'), 'y');
    CHECK_INT(tell(&late, 'c'), 'y');
    CHECK_INT(tell(&other, 'i'), 'y');
    CHECK_INT(tell(&other, 'c'), 'u');
    worker_join(&client);
    worker_join(&late);
    server = server_pid();
    wait_for("", "get_client_list", server);
    CHECK_INT(tell(&other, 'c'), 'u');
    end_daemon();
    wait_for_context(&other);
    worker_join(&other);
}

static void many_clients(void) {
    CUcontext context;

    node_use_topology("h200x2.conf");
    start_daemon();
    OK(cuInit(0));
    for (int i = 0; i < 48; i++)
        OK(cuCtxCreate_v2(&context, 0, 0));
    CHECK_INT(cuCtxCreate_v2(&context, 0, 0), CUDA_ERROR_MPS_MAX_CLIENTS_REACHED);
    OK(cuCtxDestroy_v2(context));
    OK(cuCtxCreate_v2(&context, 0, 0));
    CHECK_INT(cuCtxCreate_v2(&context, 0, 0), CUDA_ERROR_MPS_MAX_CLIENTS_REACHED);
    OK(cuCtxCreate_v2(&context, 0, 1));
    end_daemon();
}

static void without_the_daemons_memory(void) {
    struct worker client = worker_start(obey, NULL), blind = worker_start(obey, NULL);

    start_daemon();
    CHECK_INT(tell(&client, 'i'), 'y');
    CHECK_INT(shell(output, sizeof(output), "rm /dev/shm/cuda.shm.%x.%x.1", geteuid(), server_pid()), 0);
    CHECK_INT(tell(&client, 'c'), 'y'); /* which has found it before */
    CHECK_INT(tell(&blind, 'i'), '5');
    worker_join(&client);
    worker_join(&blind);
    end_daemon();
}

static void obey_as_nobody(void *environment) {
    CHECK_INT(setgid(65534), 0);
    CHECK_INT(setuid(65534), 0);
    obey(environment);
}

/* Any user may use the node's GPUs. */
static void open_node(void) {
    CHECK_INT(sim_open_all(), 0);
    CHECK_INT(chmod(node_path("."), 0777), 0);
    CHECK_INT(chmod(node_path("dev/nvidiactl"), 0666), 0);
    CHECK_INT(chmod(node_path("dev/nvidia0"), 0666), 0);
}

static void one_user_after_the_other(void) {
    struct worker mine, others;
    int server;

    if (geteuid() != 0) {
        fprintf(stderr, "    needs root\n");
        return;
    }
    open_node();
    mine = worker_start(obey, NULL);
    others = worker_start(obey_as_nobody, NULL);
    start_daemon();
    CHECK_INT(tell(&mine, 'i'), 'y');
    CHECK_INT(tell(&mine, 'c'), 'y');
    server = server_pid();
    worker_tell(&others, 'i');
    for (int i = 0; i < 500 && strstr(output, "push client") == NULL; i++) {
        shell(output, sizeof(output), "cat %s", node_path("log/control.log"));
        sleep_ms(10);
    }
    CHECK_INT(server_pid(), server);
    CHECK_INT(tell(&mine, 'a'), 'y');
    worker_join(&mine);
    CHECK_INT(worker_hear(&others), 'y');
    CHECK_INT(tell(&others, 'c'), 'y');
    CHECK(server_pid() != server);
    worker_join(&others);
    end_daemon();
}

static void one_server_for_all_users(void) {
    struct worker mine, others;
    int server;

    if (geteuid() != 0) {
        fprintf(stderr, "    needs root\n");
        return;
    }
    open_node();
    mine = worker_start(obey, NULL);
    others = worker_start(obey_as_nobody, NULL);
    CHECK_INT(shell(output, sizeof(output), "%s -d -multiuser-server 2>&1", program()), 0);
    CHECK_INT(tell(&mine, 'i'), 'y');
    server = server_pid();
    CHECK_INT(tell(&others, 'i'), 'y');
    CHECK_INT(tell(&others, 'c'), 'y');
    CHECK_INT(server_pid(), server);
    worker_join(&mine);
    worker_join(&others);
    end_daemon();
}

/* ---- Ends ---- */

static void a_dead_server_takes_its_clients_along(void) {
    struct worker client, idle, late = worker_start(obey, NULL);
    int server;

    start_daemon();
    client = start_client(NULL);
    idle = start_client(NULL);
    server = server_pid();
    CHECK_INT(tell(&client, 'l'), 'y');
    kill(server, SIGKILL);
    wait_for("", "get_server_list", 0);
    CHECK_INT(tell(&idle, 'a'), '6');
    CHECK_INT(tell(&client, 's'), '6'); /* its minute of kernels is over */
    CHECK_INT(tell(&client, 'a'), '6');
    CHECK_INT(tell(&client, 'c'), '6');
    CHECK_INT(tell(&late, 'i'), 'y');
    CHECK_INT(tell(&late, 'c'), 'y');
    CHECK(server_pid() != server);
    worker_join(&client);
    worker_join(&idle);
    worker_join(&late);
    end_daemon();
}

static void the_kernels_of_the_dead_stop(void) {
    struct worker dead, client;

    start_daemon();
    dead = start_client(NULL);
    client = start_client(NULL);
    CHECK_INT(tell(&dead, 'l'), 'y');
    CHECK_INT(tell(&client, 'k'), 'y');
    CHECK_INT(tell(&client, 's'), 'y'); /* by turns */
    worker_kill(&dead, SIGKILL);
    CHECK_INT(tell(&client, 'k'), 'y');
    CHECK_INT(tell(&client, 's'), 'y');
    CHECK_INT(sim_open_all(), 0);
    CHECK(sim_gpu_busy_ns(0) < 30000000000);
    worker_join(&client);
    end_daemon();
}

static void a_client_is_terminated(void) {
    struct worker client, other;
    int server;

    start_daemon();
    client = start_client(NULL);
    other = start_client(NULL);
    server = server_pid();
    CHECK_INT(tell(&client, 'l'), 'y');
    control("terminate_client %d %d", server, client.pid);
    CHECK(strcmp(output, "0\n") == 0);
    CHECK_INT(tell(&client, 's'), '0');
    CHECK_INT(tell(&client, 'c'), '0');
    CHECK_INT(tell(&other, 'k'), 'y');
    CHECK_INT(tell(&other, 's'), 'y');
    control("terminate_client %d 1", server);
    CHECK(strcmp(output, "0\n") != 0);
    control("get_server_status %d", server);
    CHECK(strcmp(output, "ACTIVE\n") == 0);
    worker_join(&client);
    worker_join(&other);
    end_daemon();
}

static void a_fault_is_everybodys(void) {
    struct worker faulty, neighbour, elsewhere = worker_start(obey, NULL), late = worker_start(obey, NULL);
    int server;

    start_daemon();
    faulty = start_client(NULL);
    neighbour = start_client(NULL);
    CHECK_INT(tell(&elsewhere, 'i'), 'y'); /* and has no context */
    server = server_pid();
    CHECK_INT(sim_open_all(), 0);
    CHECK_INT(sim_fault_kernel(0, 1, CUDA_ERROR_LAUNCH_FAILED), 0);
    CHECK_INT(tell(&neighbour, 's'), 'y');
    CHECK_INT(tell(&faulty, 'k'), 'y');
    CHECK_INT(tell(&faulty, 's'), 'l');
    CHECK_INT(tell(&neighbour, 's'), 'l');
    CHECK_INT(tell(&neighbour, 'a'), 'l');
    control("get_server_status %d", server);
    CHECK(strcmp(output, "FAULT\n") == 0);
    CHECK_INT(tell(&late, 'i'), '7');
    CHECK_INT(tell(&elsewhere, 'c'), '7');
    worker_join(&faulty);
    control("get_server_status %d", server);
    CHECK(strcmp(output, "FAULT\n") == 0);
    worker_join(&neighbour);
    wait_for("ACTIVE\n", "get_server_status", server);
    CHECK_INT(tell(&late, 'i'), 'y');
    CHECK_INT(tell(&late, 'c'), 'y');
    CHECK_INT(tell(&elsewhere, 'c'), 'y');
    CHECK_INT(server_pid(), server);
    worker_join(&late);
    worker_join(&elsewhere);
    end_daemon();
}

static void servers_shut_down(void) {
    struct worker client, late = worker_start(obey, NULL);
    int server;

    start_daemon();
    client = start_client(NULL);
    server = server_pid();
    control("shutdown_server %d", server);
    worker_tell(&late, 'i'); /* waits for the next */
    CHECK_INT(tell(&client, 'a'), 'y');
    worker_join(&client);
    CHECK_INT(worker_hear(&late), 'y');
    CHECK_INT(tell(&late, 'c'), 'y');
    CHECK(server_pid() != server);
    control("shutdown_server %d -f", server_pid());
    wait_for("", "get_server_list", 0);
    CHECK_INT(tell(&late, 'a'), '6');
    worker_join(&late);
    end_daemon();
}

static void quitting_waits_for_clients(void) {
    struct worker client, late = worker_start(obey, NULL);
    FILE *quitting;

    start_daemon();
    client = start_client(NULL);
    snprintf(output, sizeof(output), "echo quit | %s", program());
    quitting = popen(output, "re");
    /* It has begun when the socket is gone. */
    for (int i = 0; i < 500 && access(node_path("pipe/control"), F_OK) == 0; i++)
        sleep_ms(10);
    CHECK_INT(tell(&late, 'i'), 'y'); /* without MPS */
    CHECK_INT(tell(&client, 'a'), 'y');
    CHECK_INT(control("get_server_list"), 0); /* it is there yet */
    worker_join(&client);
    CHECK_INT(pclose(quitting), 0);
    CHECK_INT(control("get_server_list"), 1);
    worker_join(&late);
}

const struct test mps_tests[] = {
    {"the daemon and its commands", the_daemon_and_its_commands},
    {"a server for its clients", a_server_for_its_clients},
    {"GPUs by the daemon's numbers", gpus_by_the_daemons_numbers},
    {"the limit holds however memory is taken", the_limit_holds_however_memory_is_taken},
    {"the smaller limit counts", the_smaller_limit_counts},
    {"clients run side by side", clients_run_side_by_side},
    {"clients queue for more than there is", clients_queue_for_more_than_there_is},
    {"the server takes turns with others", the_server_takes_turns_with_others},
    {"the server is the one process", the_server_is_the_one_process},
    {"many clients", many_clients},
    {"without the daemon's memory", without_the_daemons_memory},
    {"one user after the other", one_user_after_the_other},
    {"one server for all users", one_server_for_all_users},
    {"a dead server takes its clients along", a_dead_server_takes_its_clients_along},
    {"the kernels of the dead stop", the_kernels_of_the_dead_stop},
    {"a client is terminated", a_client_is_terminated},
    {"a fault is everybody's", a_fault_is_everybodys},
    {"servers shut down", servers_shut_down},
    {"quitting waits for clients", quitting_waits_for_clients},
    {0},
};
