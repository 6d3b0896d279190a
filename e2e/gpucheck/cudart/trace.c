/*
 * Traces what CUDA's runtime library calls in the driver: preloaded, it puts a stub before each function that the library
 * looks up, asks cuGetProcAddress for, or finds in a private table (but the one that tests whether the driver is genuine).
 * To stderr, a line for each thing that is new before a call, which is what the call before it did:
 *
 *   trace: call NAME                  the first call of a function; of a table, FIRST_BYTES_OF_ITS_UUID[SLOT]
 *   trace: context in NAME            a context has become current, or another one has
 *   trace: memory MIB in NAME         less of the GPU's memory is free; modules and contexts take it
 *
 * x86-64 only.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define STUBS_MAX 4096
#define STUB_BYTES 32
#define TABLE_SLOTS_MAX 512

typedef int get_function(const char *name, void **function, int version, uint64_t flags);
typedef int get_function_v2(const char *name, void **function, int version, uint64_t flags, int *status);
typedef int get_table(const void **table, const unsigned char uuid[16]);
typedef void *lookup(void *handle, const char *name);

struct entry {
    void *real; /* first: trace_common jumps to it */
    char name[64];
    bool called;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct entry entries[STUBS_MAX];
static unsigned count;
static unsigned char *code;
static __thread bool inside;

static get_function *real_get;
static get_function_v2 *real_get_v2;
static get_table *real_table;
static int (*current_context)(void **context);
static int (*memory_info)(size_t *free_bytes, size_t *total);

static const struct entry *last;
static void *last_context;
static size_t last_free;

/* --- before each call --------------------------------------------------------------------------------------------- */

/* What the call before this one did. */
static void observe(void) {
    void *context = NULL;
    size_t free_bytes, total;

    if (last == NULL || current_context == NULL || current_context(&context) != 0 || context == NULL)
        return;
    if (context != last_context)
        fprintf(stderr, "trace: context in %s\n", last->name);
    last_context = context;
    if (memory_info == NULL || memory_info(&free_bytes, &total) != 0)
        return;
    if (last_free == 0 || free_bytes < last_free)
        fprintf(stderr, "trace: memory %zu in %s\n", ((last_free == 0 ? total : last_free) - free_bytes) >> 20,
                last->name);
    last_free = free_bytes;
}

__attribute__((used)) void trace_called(struct entry *entry) {
    if (inside)
        return;
    inside = true;
    pthread_mutex_lock(&mutex);
    observe();
    if (!entry->called)
        fprintf(stderr, "trace: call %s\n", entry->name);
    entry->called = true;
    last = entry;
    pthread_mutex_unlock(&mutex);
    inside = false;
}

/* A stub comes here with its entry in r11. All that may hold an argument is kept. */
void trace_common(void);
__asm__(".text\n"
        ".globl trace_common\n"
        ".hidden trace_common\n"
        ".type trace_common, @function\n"
        "trace_common:\n"
        "    push %rdi; push %rsi; push %rdx; push %rcx; push %r8; push %r9; push %rax; push %r11\n"
        "    sub $136, %rsp\n"
        "    movups %xmm0, (%rsp); movups %xmm1, 16(%rsp); movups %xmm2, 32(%rsp); movups %xmm3, 48(%rsp)\n"
        "    movups %xmm4, 64(%rsp); movups %xmm5, 80(%rsp); movups %xmm6, 96(%rsp); movups %xmm7, 112(%rsp)\n"
        "    mov %r11, %rdi\n"
        "    call trace_called\n"
        "    movups (%rsp), %xmm0; movups 16(%rsp), %xmm1; movups 32(%rsp), %xmm2; movups 48(%rsp), %xmm3\n"
        "    movups 64(%rsp), %xmm4; movups 80(%rsp), %xmm5; movups 96(%rsp), %xmm6; movups 112(%rsp), %xmm7\n"
        "    add $136, %rsp\n"
        "    pop %r11; pop %rax; pop %r9; pop %r8; pop %rcx; pop %rdx; pop %rsi; pop %rdi\n"
        "    jmp *(%r11)\n"
        ".size trace_common, . - trace_common\n");

/* --- stubs -------------------------------------------------------------------------------------------------------- */

/* mov r11, entry; mov r10, trace_common; jmp r10 */
static void write_stub(unsigned char *at, const struct entry *entry) {
    void (*common)(void) = trace_common;

    memcpy(at, "\x49\xbb", 2);
    memcpy(at + 2, &entry, 8);
    memcpy(at + 10, "\x49\xba", 2);
    memcpy(at + 12, &common, 8);
    memcpy(at + 20, "\x41\xff\xe2", 3);
}

/* The function itself, if there is no room. */
static void *stub_of(const char *name, void *real) {
    void *stub = real;

    pthread_mutex_lock(&mutex);
    if (code == NULL) {
        code =
            mmap(NULL, STUBS_MAX * STUB_BYTES, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        code = code == MAP_FAILED ? NULL : code;
    }
    if (code != NULL && count < STUBS_MAX) {
        struct entry *entry = &entries[count];

        entry->real = real;
        snprintf(entry->name, sizeof entry->name, "%s", name);
        write_stub(code + count * STUB_BYTES, entry);
        stub = code + count++ * STUB_BYTES;
    }
    pthread_mutex_unlock(&mutex);
    return stub;
}

/* --- where functions come from ------------------------------------------------------------------------------------ */

static void *ours_or_stub(const char *name, void *real, int version);

static int get(const char *name, void **function, int version, uint64_t flags) {
    int result = real_get(name, function, version, flags);

    if (result == 0 && function != NULL && *function != NULL)
        *function = ours_or_stub(name, *function, version);
    return result;
}

static int get_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    int result = real_get_v2(name, function, version, flags, status);

    if (result == 0 && function != NULL && *function != NULL)
        *function = ours_or_stub(name, *function, version);
    return result;
}

/* A table begins with its size in bytes; one that does not stays as it is. A copy is never freed. */
static const void *copy_of(const void *const *table, const unsigned char uuid[16]) {
    static const void *copies[32][TABLE_SLOTS_MAX];
    static unsigned used;
    size_t slots = (size_t)table[0] / sizeof *table;
    char name[64];

    if (slots < 2 || slots > TABLE_SLOTS_MAX || used == sizeof copies / sizeof copies[0])
        return table;
    const void **copy = copies[used++];
    copy[0] = table[0];
    for (size_t i = 1; i < slots; i++) {
        snprintf(name, sizeof name, "%02x%02x%02x%02x[%zu]", uuid[0], uuid[1], uuid[2], uuid[3], i);
        copy[i] = table[i] == NULL ? NULL : stub_of(name, (void *)(uintptr_t)table[i]);
    }
    return copy;
}

/* d4082055-bde6-704b-8d34-ba123c66e1f2 is the test of the driver. */
static int table(const void **answer, const unsigned char uuid[16]) {
    int result = real_table(answer, uuid);

    if (result == 0 && memcmp(uuid, "\xd4\x08\x20\x55", 4) != 0)
        *answer = copy_of(*answer, uuid);
    return result;
}

/* The function of 11.3 has four parameters, that of 12.0 five. */
static void *ours_or_stub(const char *name, void *real, int version) {
    if (strcmp(name, "cuGetExportTable") == 0) {
        *(void **)&real_table = real;
        return (void *)table;
    }
    if (strcmp(name, "cuGetProcAddress_v2") == 0 || (strcmp(name, "cuGetProcAddress") == 0 && version >= 12000)) {
        *(void **)&real_get_v2 = real;
        return (void *)get_v2;
    }
    if (strcmp(name, "cuGetProcAddress") == 0) {
        *(void **)&real_get = real;
        return (void *)get;
    }
    if (strcmp(name, "cuCtxGetCurrent") == 0)
        *(void **)&current_context = real;
    return stub_of(name, real);
}

/* Source: dlsym(3); the version is that of x86-64's first C library. */
void *dlsym(void *handle, const char *name) {
    static lookup *real;

    if (real == NULL)
        *(void **)&real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    void *found = real(handle, name);
    if (found == NULL || strncmp(name, "cu", 2) != 0 || strncmp(name, "cuda", 4) == 0)
        return found;
    if (memory_info == NULL)
        *(void **)&memory_info = real(handle, "cuMemGetInfo_v2");
    return ours_or_stub(name, found, 0);
}
