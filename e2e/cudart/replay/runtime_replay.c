/*
 * A program of the runtime API, as far as the driver sees it: runtime_replay VERSION LOADING SCENARIO. It prints the name
 * of each stage and waits there for a line on its standard input.
 *
 *   calls     uses each call once, resets the device, uses it again, and ends
 *   full      allocates until it gets no more
 *   graphs    launches a kernel, and a graph of it
 *   devices   uses two devices, and resets the second
 *   threads   as calls, by several threads at once in one context
 *   forked    starts, has a context, and forks: a child of before may use the GPU, a child of after may not
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime.h"

#define MIB ((size_t)1 << 20)

/* 4 MiB of variables. */
static const char ptx[] =
    ".version 7.0\n.target sm_50\n.address_size 64\n.visible .global .align 4 .b8 table[4194304];\n"
    ".visible .entry kernel() { ret; }\n";

static struct {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t content_bytes;
    uint16_t kind, entry_version;
    uint32_t entry_header_bytes;
    uint64_t entry_bytes;
    uint32_t unused[12];
    char text[sizeof(ptx)];
} __attribute__((packed)) fat = {.magic = 0xba55ed50,
                                 .version = 1,
                                 .header_bytes = 16,
                                 .content_bytes = sizeof(fat) - 16,
                                 .kind = 1,
                                 .entry_version = 0x101,
                                 .entry_header_bytes = 64,
                                 .entry_bytes = sizeof(ptx)};
static const struct fat_wrapper wrapper = {.magic = 0x466243b1, .version = 1, .data = &fat};

static int runtime_version;

static int fail(const char *what, CUresult result) {
    printf("%s: %d\n", what, result);
    exit(1);
}

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        CUresult must_result = (call);                                                                                 \
        if (must_result != CUDA_SUCCESS)                                                                               \
            fail(#call, must_result);                                                                                  \
    } while (0)

static void stage(const char *name) {
    char line[16];

    puts(name);
    fflush(stdout);
    if (fgets(line, sizeof(line), stdin) == NULL)
        exit(3);
}

/* Memory that is written and read back. */
static CUdeviceptr make_block(size_t bytes) {
    char *sent = malloc(bytes), *got = calloc(1, bytes);
    CUdeviceptr block;

    memset(sent, 0x5a, bytes);
    MUST(runtime_malloc(&block, bytes));
    MUST(runtime_memcpy_to(block, sent, bytes));
    MUST(runtime_memcpy_from(got, block, bytes));
    if (memcmp(sent, got, bytes) != 0)
        fail("what was copied", CUDA_ERROR_UNKNOWN);
    free(sent);
    free(got);
    return block;
}

static void use_pool(void) {
    CUdeviceptr block;
    CUstream stream;

    MUST(runtime_stream_create(&stream));
    MUST(runtime_malloc_async(&block, 32 * MIB, stream));
    MUST(runtime_launch_kernel("kernel", stream));
    MUST(runtime_free_async(block, stream));
    MUST(runtime_stream_synchronize(stream));
    MUST(runtime_stream_destroy(stream));
}

static void calls(void) {
    CUdeviceptr block, table;
    size_t free_bytes, total;

    MUST(runtime_start(runtime_version));
    stage("started");
    block = make_block(8 * MIB);
    stage("context");
    MUST(runtime_launch_kernel("kernel", NULL));
    MUST(runtime_device_synchronize());
    stage("module");
    MUST(runtime_get_symbol_address(&table, "table"));
    stage("variable");
    use_pool();
    MUST(runtime_free(block));
    MUST(runtime_mem_get_info(&free_bytes, &total));
    printf("total %zu\n", total / MIB);
    stage("freed");
    MUST(runtime_device_reset());
    stage("reset");
    make_block(8 * MIB);
    MUST(runtime_launch_kernel("kernel", NULL));
    MUST(runtime_get_symbol_address(&table, "table"));
    stage("again");
    runtime_end();
    stage("ended");
}

static void full(void) {
    CUdeviceptr table;
    CUresult result = CUDA_SUCCESS;

    MUST(runtime_start(runtime_version));
    MUST(runtime_get_symbol_address(&table, "table"));
    for (size_t size = 512 * MIB; size >= 2 * MIB; size /= 2) {
        do {
            CUdeviceptr block;
            result = runtime_malloc(&block, size);
        } while (result == CUDA_SUCCESS);
        if (result != CUDA_ERROR_OUT_OF_MEMORY)
            fail("refused", result);
    }
    stage("full");
    MUST(runtime_device_reset());
    stage("reset");
}

static void devices_in_turn(void) {
    size_t free_bytes, total;
    CUdeviceptr block;

    MUST(runtime_start(runtime_version));
    MUST(runtime_malloc(&block, 8 * MIB));
    MUST(runtime_set_device(1));
    make_block(16 * MIB);
    MUST(runtime_launch_kernel("kernel", NULL));
    MUST(runtime_mem_get_info(&free_bytes, &total));
    printf("total %zu\n", total / MIB);
    stage("two");
    MUST(runtime_device_reset());
    MUST(runtime_set_device(0));
    MUST(runtime_free(block));
    MUST(runtime_malloc(&block, 8 * MIB));
    stage("one");
    runtime_end();
    stage("ended");
}

static void graphs(void) {
    CUgraphExec exec;

    MUST(runtime_start(runtime_version));
    make_block(8 * MIB);
    MUST(runtime_graph_instantiate(&exec, "kernel"));
    stage("loaded");
    MUST(runtime_launch_kernel("kernel", NULL));
    stage("launched");
    MUST(runtime_graph_launch(exec, NULL));
    MUST(runtime_device_synchronize());
    stage("graph");
    MUST(runtime_graph_exec_destroy(exec));
    stage("freed");
    MUST(runtime_device_reset());
    stage("reset");
}

enum { THREADS = 8 };

static pthread_barrier_t together;

static void *one_of_many(void *unused) {
    CUdeviceptr block;

    pthread_barrier_wait(&together);
    MUST(runtime_set_device(0));
    block = make_block(4 * MIB);
    MUST(runtime_launch_kernel("kernel", NULL));
    use_pool();
    make_block(2 * MIB);
    MUST(runtime_free(block));
    return unused;
}

static void threads(void) {
    pthread_t thread[THREADS];

    MUST(runtime_start(runtime_version));
    pthread_barrier_init(&together, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&thread[i], NULL, one_of_many, NULL);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    MUST(runtime_device_synchronize());
    stage("done");
    MUST(runtime_device_reset());
    stage("reset");
}

/* A child that allocates, sends the result, and ends when nobody listens any more. */
static pid_t allocate_in_child(bool starts, int *its) {
    int ends[2];
    pid_t child;

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0 || (child = fork()) < 0)
        exit(1);
    close(ends[child != 0]);
    if (child != 0) {
        *its = ends[0];
        return child;
    }
    CUdeviceptr block;
    CUresult result = starts ? runtime_start(runtime_version) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS)
        result = runtime_malloc(&block, 8 * MIB);
    if (!starts) { /* as it ends: nothing of its parent's */
        runtime_device_reset();
        runtime_end();
    }
    if (write(ends[1], &result, sizeof(result)) != sizeof(result))
        _exit(1);
    _exit(read(ends[1], &result, 1) != 0);
}

static void must_say(int child, CUresult wanted) {
    CUresult result;

    if (read(child, &result, sizeof(result)) != sizeof(result) || result != wanted)
        fail("a child", result);
}

static void end_child(pid_t child, int its) {
    int status = 1;

    close(its);
    if (waitpid(child, &status, 0) != child || status != 0)
        fail("a child's end", CUDA_ERROR_UNKNOWN);
}

static void forked(void) {
    int first, second;
    pid_t before = allocate_in_child(true, &first), after;
    CUdeviceptr block;

    must_say(first, CUDA_SUCCESS);
    MUST(runtime_start(runtime_version));
    MUST(runtime_malloc(&block, 16 * MIB));
    after = allocate_in_child(false, &second);
    must_say(second, CUDA_ERROR_NOT_INITIALIZED);
    end_child(after, second);
    MUST(runtime_free(block));
    MUST(runtime_malloc(&block, 16 * MIB));
    stage("both");
    end_child(before, first);
    stage("one");
    runtime_end();
    stage("ended");
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } scenarios[] = {{"calls", calls},     {"full", full},    {"graphs", graphs}, {"devices", devices_in_turn},
                     {"threads", threads}, {"forked", forked}};

    if (argc != 4)
        return 2;
    runtime_version = atoi(argv[1]);
    memcpy(fat.text, ptx, sizeof(ptx));
    runtime_register(&wrapper, (enum loading)atoi(argv[2]));
    for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
        if (strcmp(argv[3], scenarios[i].name) == 0) {
            scenarios[i].run();
            return 0;
        }
    }
    return 2;
}
