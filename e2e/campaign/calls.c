/* What all families stand on: the driver's functions, the clock, and what an answer means. */
#include "calls.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "families/family.h"
#include "worker.h"

#define MAY_WAIT_NS 1000000000u
#define WORTH_A_LOOK_NS 20000000u
#define MOST ((uint64_t)1 << 50) /* more than any GPU has; sums of it do not wrap */

static __thread struct call *current_call;
static void *library;

/* ---- The driver's functions ---- */

static void *by_name(const char *symbol) {
    return dlsym(library, symbol);
}

/* As programs that are linked with the runtime do. Versions of a function that it does not know it lacks. */
static void *by_address(const struct function *function) {
    static CUresult (*get)(const char *, void **, int, cuuint64_t);
    static CUresult (*get_v2)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
    void *found = NULL;
    if (get == NULL) {
        *(void **)&get = by_name("cuGetProcAddress");
        *(void **)&get_v2 = by_name("cuGetProcAddress_v2");
    }
    size_t length = strlen(function->symbol);
    bool per_thread = length > 5 && (strcmp(function->symbol + length - 5, "_ptsz") == 0 ||
                                     strcmp(function->symbol + length - 5, "_ptds") == 0);
    cuuint64_t flags = per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    CUdriverProcAddressQueryResult status;
    CUresult result = my_seat->seed % 4 < 2 ? get(function->base, &found, function->version, flags)
                                            : get_v2(function->base, &found, function->version, flags, &status);
    return result == CUDA_SUCCESS ? found : NULL;
}

bool calls_load(bool by_addresses, char *why, size_t size) {
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(why, size, "%s", dlerror());
        return false;
    }
    for (unsigned f = 0; families[f] != NULL; f++)
        for (const struct function *function = families[f]->functions; function->symbol != NULL; function++)
            *function->pointer =
                by_addresses && function->version != 0 ? by_address(function) : by_name(function->symbol);
    return true;
}

void *calls_find(const char *symbol) {
    return by_name(symbol);
}

bool calls_has(const char *symbol, size_t length) {
    char name[96];
    snprintf(name, sizeof name, "%.*s", (int)length, symbol);
    return by_name(name) != NULL;
}

/* ---- The clock ---- */

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* How long this thread has been ready to run without a processor (second field of schedstat). */
uint64_t calls_not_running_ns(void) {
    char text[96];
    unsigned long long running, waiting = 0;
    int file = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    ssize_t size = file >= 0 ? read(file, text, sizeof text - 1) : 0;
    if (file >= 0)
        close(file);
    text[size > 0 ? size : 0] = '\0';
    return sscanf(text, "%llu %llu", &running, &waiting) == 2 ? waiting : 0;
}

static __thread uint64_t operation_not_running_ns;
static __thread uint32_t operation_stops;

struct stopwatch watch_start(void) {
    return (struct stopwatch){.began_ns = now_ns()};
}

void calls_note_unscheduled(struct board *of, uint64_t ns) {
    uint64_t longest = atomic_load(&of->unscheduled_ns);
    while (longest < ns && !atomic_compare_exchange_weak(&of->unscheduled_ns, &longest, ns))
        ;
}

/* The time between call and return counts, less the time in which the thread had no processor since the operation began;
 * not if the process was stopped meanwhile. Whom the thread waits for may have waited for a processor too, so what
 * anybody lately waited for one is allowed besides, a few times over: those who hold it up may do so one after another. */
void watch_stop(const struct stopwatch *watch, const char *what) {
    uint64_t wall = now_ns() - watch->began_ns;
    atomic_fetch_add_explicit(&board->calls, 1, memory_order_relaxed);
    if (wall < WORTH_A_LOOK_NS)
        return;
    uint64_t waited = calls_not_running_ns() - operation_not_running_ns;
    uint64_t took = wall > waited ? wall - waited : 0;
    uint32_t stops = atomic_load(&my_seat->stops);
    if (stops != operation_stops || stops % 2 != 0)
        return;
    uint64_t longest = atomic_load(&board->longest_call_ns);
    while (longest < took && !atomic_compare_exchange_weak(&board->longest_call_ns, &longest, took))
        ;
    uint64_t unscheduled = atomic_load(&board->unscheduled_ns);
    if (took > MAY_WAIT_NS + 8 * unscheduled && current_call != NULL)
        wrong(current_call, "waited %llu ms, and %llu without a processor (others lately up to %llu), in %.60s",
              (unsigned long long)(took / 1000000), (unsigned long long)(waited / 1000000),
              (unsigned long long)(unscheduled / 1000000), what);
}

void calls_begin(struct call *call) {
    uint64_t waited = calls_not_running_ns();
    current_call = call;
    if (waited > operation_not_running_ns) /* less in a forked child */
        calls_note_unscheduled(board, waited - operation_not_running_ns);
    operation_not_running_ns = waited;
    operation_stops = atomic_load(&my_seat->stops);
}

/* ---- What an answer means ---- */

static void append(struct call *call, const char *format, va_list arguments) {
    size_t length = strlen(call->desk->text);
    vsnprintf(call->desk->text + length, TEXT_SIZE - length, format, arguments);
}

void say(struct call *call, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    append(call, format, arguments);
    va_end(arguments);
}

void wrong(struct call *call, const char *format, ...) {
    va_list arguments;
    say(call, " WRONG: ");
    va_start(arguments, format);
    append(call, format, arguments);
    va_end(arguments);
    call->desk->outcome = OUTCOME_WRONG;
}

void needs(struct call *call, uint64_t bytes) {
    atomic_store(&call->desk->gpu, call->gpu);
    atomic_store(&call->desk->also, 0);
    atomic_store(&call->desk->need, bytes < MOST ? bytes : MOST);
}

void needs_everywhere(struct call *call, uint64_t bytes) {
    needs(call, bytes);
    atomic_store(&call->desk->also, visible_gpus());
}

bool judged(struct call *call, CUresult result) {
    struct desk *desk = call->desk;
    desk->result = result;
    if (desk->outcome == OUTCOME_WRONG)
        return result == CUDA_SUCCESS;
    say(call, " = %d", result);
    if (result == CUDA_SUCCESS)
        desk->outcome = OUTCOME_DONE;
    else if (result == CUDA_ERROR_OUT_OF_MEMORY)
        desk->outcome = OUTCOME_REFUSED;
    else
        wrong(call, "neither done nor out of memory");
    return result == CUDA_SUCCESS;
}

bool expect(struct call *call, CUresult result, CUresult expected, const char *what) {
    if (result != expected)
        wrong(call, "%s gave %d, not %d", what, result, expected);
    else if (call->desk->outcome != OUTCOME_WRONG)
        call->desk->outcome = OUTCOME_DONE;
    return result == expected;
}

void grows(struct call *call, int64_t least, int64_t most) {
    atomic_store(&call->desk->gpu, call->gpu);
    call->desk->grows = true;
    /* Whoever is refused at first makes pools smaller. */
    call->desk->least = objects_count(KIND_POOL) != 0 ? -((int64_t)1 << 50) : least;
    call->desk->most = most;
}

uint64_t rounded(uint64_t bytes, uint64_t to) {
    return bytes > UINT64_MAX - to ? UINT64_MAX - to + 1 : (bytes + to - 1) / to * to;
}

uint64_t random_size(struct call *call) {
    uint64_t *random = &call->random, room = call->desk->room[call->gpu];
    bool known = room != UINT64_MAX;
    switch (random_below(random, 20)) {
    case 0:
    case 1:
    case 2:
        return 1 + random_below(random, 4 * KIB);
    case 3:
    case 4:
    case 5:
        return 1 + random_below(random, MIB);
    case 6: /* around what is packed and what is not */
        return MIB - 2 + random_below(random, 5);
    case 7:
        return (1 + random_below(random, 32)) * BLOCK - 1 + random_below(random, 3);
    case 8: /* exactly what is left */
    case 9:
        return known && room >= BLOCK ? room / BLOCK * BLOCK : BLOCK;
    case 10: /* a byte too much */
        return known ? room / BLOCK * BLOCK + 1 : BLOCK;
    case 11:
        return 64 * MIB + random_below(random, 512 * MIB);
    case 12: /* absurd */
        return random_once_in(random, 4) ? UINT64_MAX - random_below(random, 4 * MIB)
                                         : (uint64_t)1 << (32 + random_below(random, 31));
    default:
        return MIB + random_below(random, 24 * MIB);
    }
}

bool gpu_claimed(int gpu) {
    return board->bare || board->limit_bytes[gpu] != 0;
}
