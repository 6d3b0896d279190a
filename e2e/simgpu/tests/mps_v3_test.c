/* MPS v3: a named server, its namespaces, and what goes wrong with them silently. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"

static char output[65536];

#define CHECK_OUTPUT(text)                                                                                             \
    do {                                                                                                               \
        if (strcmp(output, text) != 0)                                                                                 \
            check_failed(__FILE__, __LINE__, "%s, and not %s", output, text);                                          \
    } while (0)

/* Runs the daemon's program; the exit status, and what it prints in `output`. */
__attribute__((format(printf, 1, 2))) static int control(const char *format, ...) {
    char arguments[512];
    va_list args;

    va_start(args, format);
    vsnprintf(arguments, sizeof(arguments), format, args);
    va_end(args);
    return shell(output, sizeof(output), "%.*snvidia-cuda-mps-control %s 2>&1",
                 (int)(strrchr(tool_path, '/') + 1 - tool_path), tool_path, arguments);
}

#define DONE(...) CHECK_INT(control(__VA_ARGS__), 0)
#define REFUSED(...) CHECK_INT(control(__VA_ARGS__), 1)

static void start_daemon(void) {
    node_use_topology("r615.conf");
    DONE("-d -p 3");
}

/* Waits until a list has as many lines. */
static void wait_for_lines(const char *list, int want) {
    for (int i = 0, lines = -1; i < 200 && lines != want; i++, sleep_ms(20)) {
        DONE("%s --format=csv,noheader", list);
        lines = 0;
        for (const char *at = output; (at = strchr(at, '\n')) != NULL; at++)
            lines++;
        if (i == 199)
            check_failed(__FILE__, __LINE__, "%s goes on answering %s", list, output);
    }
}

static void wait_until_ready(void) {
    for (int i = 0; i < 200; i++, sleep_ms(20)) {
        DONE("server list --format=csv,noheader");
        if (strstr(output, ",Ready,") != NULL)
            return;
    }
    check_failed(__FILE__, __LINE__, "the server is not ready: %s", output);
}

/* A server of the first GPU with these settings of a namespace "task", if any. */
static void make_server(const char *settings) {
    DONE("server create gpu --allowed-devices=" GPU0_UUID);
    wait_until_ready();
    DONE("namespace create task --server=gpu");
    if (settings != NULL)
        DONE("namespace set task --server=gpu %s", settings);
}

static void start_server(const char *settings) {
    start_daemon();
    make_server(settings);
}

/* What a client in a pipe directory has. */
struct got {
    const char *pipe, *percentage, *limits; /* of its environment */
    int multiprocessors;
    CUresult result, alloc_200;
    size_t free, total;
};

static void be_client(struct got *got) {
    CUdeviceptr pointer;
    CUcontext context;

    setenv("CUDA_MPS_PIPE_DIRECTORY", node_path(got->pipe), 1);
    setenv("CUDA_VISIBLE_DEVICES", GPU0_UUID, 1);
    if (got->percentage != NULL)
        setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", got->percentage, 1);
    if (got->limits != NULL)
        setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", got->limits, 1);
    got->result = cuInit(0);
    setenv("CUDA_MPS_PIPE_DIRECTORY", node_path("pipe"), 1); /* for the commands of this process */
    if (got->result != CUDA_SUCCESS)
        return;
    OK(cuDeviceGetAttribute(&got->multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuMemGetInfo_v2(&got->free, &got->total));
    got->alloc_200 = cuMemAlloc_v2(&pointer, 200 * MIB);
}

/* The client in this process: each test has a process of its own, and one client. */
static struct got client(const char *pipe, const char *percentage, const char *limits) {
    struct got got = {.pipe = pipe, .percentage = percentage, .limits = limits};

    be_client(&got);
    return got;
}

/* ---- Commands ---- */

static void only_new_drivers_have_it(void) {
    REFUSED("-p 3 -h");
    CHECK(strstr(output, "namespace") == NULL);
    REFUSED("-d -p 3");
    node_use_topology("r615.conf");
    DONE("-p 3 -h");
    CHECK(strstr(output, "namespace") != NULL);
    REFUSED("-p 4 -d");
    REFUSED("server list --format=csv"); /* there is no daemon */
}

static void a_server_and_its_namespaces(void) {
    char expected[1024];

    start_daemon();
    DONE("server list --format=csv,noheader");
    CHECK_OUTPUT("");
    REFUSED("namespace create task --server=gpu");
    REFUSED("server create No-name");
    make_server("--active-thread-percentage=25 --pinned-memory-limit=1536M");
    REFUSED("namespace create task --server=gpu");
    REFUSED("namespace set task --server=gpu");
    REFUSED("namespace set task --server=gpu --active-thread-percentage=0");
    DONE("namespace list --server=gpu --format=csv,noheader");
    snprintf(expected, sizeof(expected), "default,gpu,Ready,-,-,0,%s/gpu/default\n", node_path("pipe"));
    snprintf(expected + strlen(expected), sizeof(expected) - strlen(expected),
             "task,gpu,Ready,1536M,25.00,0,%s/gpu/task\n", node_path("pipe"));
    CHECK_OUTPUT(expected);
    CHECK_INT(access(node_path("pipe/gpu/task/control"), F_OK), 0);
    CHECK_INT(access(node_path("pipe/gpu/log"), F_OK), 0);
    CHECK_INT(access(node_path("log/gpu/server.log"), F_OK), 0);
    DONE("namespace delete task --server=gpu");
    CHECK(access(node_path("pipe/gpu/task"), F_OK) != 0);
    REFUSED("namespace delete task --server=gpu");
    DONE("server delete gpu");
    wait_for_lines("server list", 0);
    CHECK(access(node_path("pipe/gpu"), F_OK) != 0);
    DONE("-q");
    REFUSED("server list --format=csv");
}

static void clients_are_listed_with_their_namespace(void) {
    char expected[64];
    struct got got;

    start_server("--active-thread-percentage=50");
    got = client("pipe/gpu/task", NULL, NULL);
    CHECK_INT(got.result, CUDA_SUCCESS);
    DONE("client list --server=gpu --format=csv,noheader");
    snprintf(expected, sizeof(expected), "%d,gpu,0,task,", getpid());
    CHECK(strncmp(output, expected, strlen(expected)) == 0);
    REFUSED("namespace delete task --server=gpu");
    DONE("namespace delete task --server=gpu --force");
    REFUSED("server delete gpu");
    DONE("-q");
}

/* ---- What a client has ---- */

static void the_namespaces_limits_hold(void) {
    struct got got;

    start_server("--active-thread-percentage=25 --pinned-memory-limit=256M");
    got = client("pipe/gpu/task", "100", NULL);
    CHECK_INT(got.multiprocessors, 4); /* of 16: what the client says of itself does not count */
    CHECK_INT(got.alloc_200, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_INT(got.free, 256 * MIB - GPU0_CONTEXT);
    CHECK_INT(got.total, 1024 * MIB); /* the trap: the total is the GPU's */
    DONE("-q");
}

static void a_client_may_lower_its_limit(void) {
    start_server("--pinned-memory-limit=512M");
    CHECK_INT(client("pipe/gpu/task", NULL, "0=128M").alloc_200, CUDA_ERROR_OUT_OF_MEMORY);
    DONE("-q");
}

/* ---- Traps ---- */

static void a_namespace_without_limits_has_none(void) {
    struct got got;

    start_server(NULL);
    DONE("namespace set default --server=gpu --active-thread-percentage=10 --pinned-memory-limit=128M");
    got = client("pipe/gpu/task", NULL, NULL);
    CHECK_INT(got.multiprocessors, 16);
    CHECK_INT(got.alloc_200, CUDA_SUCCESS);
    DONE("-q");
}

static void the_servers_directory_leads_to_the_default_namespace(void) {
    start_server("--active-thread-percentage=25");
    DONE("namespace set default --server=gpu --active-thread-percentage=50");
    CHECK_INT(client("pipe/gpu", NULL, NULL).multiprocessors, 8);
    DONE("-q");
}

static void a_limit_of_a_gpu_that_is_not_there_ends_all_limits(void) {
    struct got got;

    start_server("--active-thread-percentage=25 --pinned-memory-limit=256M");
    got = client("pipe/gpu/task", NULL, "0=128M,1=128M");
    CHECK_INT(got.alloc_200, CUDA_SUCCESS);
    CHECK_INT(got.multiprocessors, 4);
    DONE("-q");
}

static void a_wrong_directory_is_without_mps(void) {
    struct got got;

    start_server("--active-thread-percentage=25 --pinned-memory-limit=256M");
    got = client("pipe/gpu/tsak", NULL, NULL);
    CHECK_INT(got.result, CUDA_SUCCESS);
    CHECK_INT(got.multiprocessors, 16);
    CHECK_INT(got.alloc_200, CUDA_SUCCESS);
    DONE("-q");
}

static void a_server_of_a_missing_gpu_vanishes(void) {
    struct got got;

    start_daemon();
    DONE("server create gpu --allowed-devices=GPU-00000000-0000-4000-8000-00000000beef");
    wait_for_lines("server list", 0);
    CHECK_INT(shell(output, sizeof(output), "cat %s", node_path("log/gpu/server.log")), 0);
    CHECK(strstr(output, "MPS server failed to start") != NULL);
    got = client("pipe/gpu/default", NULL, NULL);
    CHECK_INT(got.result, CUDA_SUCCESS);
    CHECK_INT(got.alloc_200, CUDA_SUCCESS);
    DONE("-q");
}

const struct test mps_v3_tests[] = {
    {"only new drivers have it", only_new_drivers_have_it},
    {"a server and its namespaces", a_server_and_its_namespaces},
    {"clients are listed with their namespace", clients_are_listed_with_their_namespace},
    {"the namespace's limits hold", the_namespaces_limits_hold},
    {"a client may lower its limit", a_client_may_lower_its_limit},
    {"a namespace without limits has none", a_namespace_without_limits_has_none},
    {"the server's directory leads to the default namespace", the_servers_directory_leads_to_the_default_namespace},
    {"a limit of a GPU that is not there ends all limits", a_limit_of_a_gpu_that_is_not_there_ends_all_limits},
    {"a wrong directory is without MPS", a_wrong_directory_is_without_mps},
    {"a server of a missing GPU vanishes", a_server_of_a_missing_gpu_vanishes},
    {0},
};
