/*
 * What a context keeps for its kernels: heaps, stacks and local memory. Nobody allocates it; a setting, or a kernel that
 * needs it, makes the driver do so.
 *
 *   probe limits heap|fifo|stack|local SMALL LARGE    how much is asked for: what should fit, and what should not
 */
#include "probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char heap_kernel[] = ".extern .func (.param .b64 address) malloc (.param .b64 size);\n"
                                  ".extern .func free (.param .b64 address);\n"
                                  ".visible .entry use() {\n"
                                  "    .reg .b64 %rd<3>;\n"
                                  "    mov.u64 %rd1, 16;\n"
                                  "    {\n"
                                  "        .param .b64 size;\n"
                                  "        .param .b64 got;\n"
                                  "        st.param.b64 [size], %rd1;\n"
                                  "        call.uni (got), malloc, (size);\n"
                                  "        ld.param.b64 %rd2, [got];\n"
                                  "    }\n"
                                  "    {\n"
                                  "        .param .b64 back;\n"
                                  "        st.param.b64 [back], %rd2;\n"
                                  "        call.uni free, (back);\n"
                                  "    }\n"
                                  "    ret;\n"
                                  "}\n";

/* It prints an empty string. */
static const char fifo_kernel[] = ".extern .func (.param .b32 result) vprintf (.param .b64 format, .param .b64 list);\n"
                                  ".global .align 8 .b8 nothing[8] = {0, 0, 0, 0, 0, 0, 0, 0};\n"
                                  ".visible .entry use() {\n"
                                  "    .reg .b64 %rd<3>;\n"
                                  "    mov.u64 %rd1, nothing;\n"
                                  "    cvta.global.u64 %rd2, %rd1;\n"
                                  "    {\n"
                                  "        .param .b64 format;\n"
                                  "        .param .b64 list;\n"
                                  "        .param .b32 result;\n"
                                  "        st.param.b64 [format], %rd2;\n"
                                  "        st.param.b64 [list], 0;\n"
                                  "        call.uni (result), vprintf, (format, list);\n"
                                  "    }\n"
                                  "    ret;\n"
                                  "}\n";

static const char plain_kernel[] = ".visible .entry use() { ret; }\n";

/* Every thread that the GPU can have at once gets a frame of so many bytes. */
static const char local_kernel[] = ".visible .entry use() {\n"
                                   "    .local .align 16 .b8 frame[%llu];\n"
                                   "    .reg .b32 %%r<2>;\n"
                                   "    .reg .b64 %%rd<4>;\n"
                                   "    mov.u32 %%r1, %%tid.x;\n"
                                   "    mul.wide.u32 %%rd1, %%r1, 4;\n"
                                   "    mov.u64 %%rd2, frame;\n"
                                   "    add.s64 %%rd3, %%rd2, %%rd1;\n"
                                   "    st.volatile.local.u32 [%%rd3], %%r1;\n"
                                   "    ret;\n"
                                   "}\n";

static const struct kind {
    const char *name;
    int limit; /* -1: a kernel's own local memory */
    bool per_thread;
    const char *kernel;
} kinds[] = {
    {"heap", LIMIT_MALLOC_HEAP_SIZE, false, heap_kernel},
    {"fifo", LIMIT_PRINTF_FIFO_SIZE, false, fifo_kernel},
    {"stack", LIMIT_STACK_SIZE, true, plain_kernel},
    {"local", -1, true, local_kernel},
};

static uint64_t per_thread(uint64_t bytes) {
    enum { MOST = 512 << 10, LEAST = 1024 };
    uint64_t threads = (uint64_t)attribute(device, ATTRIBUTE_MULTIPROCESSORS) *
                       (uint64_t)attribute(device, ATTRIBUTE_THREADS_PER_MULTIPROCESSOR);
    uint64_t each = threads == 0 ? LEAST : bytes / threads / 16 * 16;
    return each < LEAST ? LEAST : each > MOST - 1024 ? MOST - 1024 : each;
}

struct attempt {
    CUresult result;
    const char *where;
    uint64_t setting;
};

/* In a context of its own, which is left current. */
static struct attempt try(const struct kind *kind, uint64_t bytes, CUcontext *own) {
    char body[1024];
    CUmodule module;
    struct attempt a = {.where = "cuCtxCreate", .setting = kind->per_thread ? per_thread(bytes) : bytes};
    if ((a.result = cuda.cuCtxCreate_v2(own, 0, device)) != CUDA_SUCCESS)
        return a;
    a.where = "cuCtxSetLimit";
    if (kind->limit >= 0 && (a.result = cuda.cuCtxSetLimit(kind->limit, a.setting)) != CUDA_SUCCESS)
        return a;
    a.where = "cuModuleLoadData";
    if (kind->limit < 0)
        snprintf(body, sizeof body, kind->kernel, (unsigned long long)a.setting);
    else
        snprintf(body, sizeof body, "%s", kind->kernel);
    if ((a.result = load_ptx(&module, body)) != CUDA_SUCCESS)
        return a;
    a.where = "cuLaunchKernel";
    a.result = run_kernel(module, "use", 1, 32);
    return a;
}

static void one(const struct kind *kind, const char *name, const char *after, uint64_t bytes) {
    CUcontext own = NULL;
    struct attempt a = try(kind, bytes, &own);
    step(name, "\"taken\":%llu,\"setting\":%llu,\"result\":%d,\"name\":\"%s\",\"where\":\"%s\"",
         (unsigned long long)bytes, (unsigned long long)a.setting, a.result, error_name(a.result), a.where);
    if (own != NULL)
        cuda.cuCtxDestroy_v2(own);
    step(after, "\"result\":0");
}

int probe_limits(int argc, char **argv) {
    if (argc != 3)
        return 2;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(kinds[i].name, argv[0]) != 0)
            continue;
        must(cuda.cuInit(0), "cuInit");
        must(cuda.cuDeviceGet(&device, 0), "cuDeviceGet");
        step("empty", "\"result\":0");
        one(&kinds[i], "small", "small-gone", strtoull(argv[1], NULL, 10));
        one(&kinds[i], "large", "large-gone", strtoull(argv[2], NULL, 10));
        return 0;
    }
    return 2;
}
