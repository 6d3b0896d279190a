#include "worker.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "calls.h"
#include "families/family.h"
#include "hesitate.h"

struct board *board;
struct seat *my_seat;
static unsigned my_seat_number;
static bool forked; /* and has not called exec since */

static CUresult (*init)(unsigned);
static CUresult (*get_count)(int *);
static CUresult (*get_uuid)(CUuuid *, CUdevice);
static CUresult (*set_current)(CUcontext);
static CUresult (*get_current)(CUcontext *);

/* Whatever ends a context excludes whatever else is done. */
static pthread_rwlock_t contexts_lock;
pthread_rwlock_t copies_lock;
static pthread_mutex_t init_lock;
static bool ready; /* cuInit has succeeded and the devices are known */
static int devices, gpus[GPUS];
static __thread uint32_t current_serial;

struct board *board_map(const char *path) {
    int file = open(path, O_RDWR | O_CLOEXEC);
    void *map = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(struct board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file >= 0)
        close(file);
    return map == MAP_FAILED ? NULL : map;
}

static void forget(void) {
    pthread_rwlock_init(&contexts_lock, NULL);
    pthread_rwlock_init(&copies_lock, NULL);
    pthread_mutex_init(&init_lock, NULL);
    ready = false;
    current_serial = 0;
    objects_reset();
}

int gpu_of_device(int device) {
    return device >= 0 && device < devices ? gpus[device] : -1;
}

uint32_t visible_gpus(void) {
    uint32_t bits = 0;
    for (int device = 0; device < devices; device++)
        if (board->limit_bytes[gpus[device]] != 0)
            bits |= UINT32_C(1) << gpus[device];
    return bits;
}

int device_count(void) {
    return devices;
}

/* ---- Making the driver ready ---- */

static bool find_devices(struct call *call) {
    if (get_count(&devices) != CUDA_SUCCESS || devices < 1 || devices > GPUS) {
        wrong(call, "%d devices", devices);
        return false;
    }
    for (int device = 0; device < devices; device++) {
        CUuuid uuid;
        gpus[device] = -1;
        if (get_uuid(&uuid, device) == CUDA_SUCCESS)
            for (int gpu = 0; gpu < (int)board->gpu_count; gpu++)
                if (memcmp(uuid.bytes, board->gpu_uuid[gpu], 16) == 0)
                    gpus[device] = gpu;
        if (gpus[device] < 0) {
            wrong(call, "device %d is unknown", device);
            return false;
        }
    }
    return true;
}

static bool make_ready(struct call *call) {
    pthread_mutex_lock(&init_lock);
    if (!ready) {
        atomic_store(&my_seat->initialised, 1);
        CUresult result = CALL(init(0));
        if (result != CUDA_SUCCESS)
            wrong(call, "cuInit gave %d", result);
        else
            ready = find_devices(call);
        if (ready)
            atomic_store(&my_seat->initialised, 2);
    }
    pthread_mutex_unlock(&init_lock);
    return ready;
}

/* What a child finds whose parent had used CUDA: nothing works, and nothing is taken. */
static void perform_cut_off(struct call *call) {
    CUresult (*allocate)(CUdeviceptr *, size_t) = NULL;
    CUresult (*retain)(CUcontext *, CUdevice) = NULL;
    CUdeviceptr address;
    CUcontext context;
    size_t free = 0, total = 0;
    CUresult (*info)(size_t *, size_t *) = NULL;
    *(void **)&allocate = calls_find("cuMemAlloc_v2");
    *(void **)&retain = calls_find("cuDevicePrimaryCtxRetain");
    *(void **)&info = calls_find("cuMemGetInfo_v2");
    say(call, "cut off by fork");
    if (atomic_load(&my_seat->cut_off) ==
        1) /* in the midst of cuInit: whoever calls the driver here may wait for ever */
        return;
    CUresult results[] = {CALL(init(0)), CALL(retain(&context, 0)), CALL(allocate(&address, 4 * MIB)),
                          CALL(info(&free, &total))};
    call->desk->outcome = call->desk->outcome == OUTCOME_WRONG ? OUTCOME_WRONG : OUTCOME_NOTHING;
    for (unsigned i = 0; i < sizeof results / sizeof results[0]; i++)
        if (results[i] == CUDA_SUCCESS)
            wrong(call, "call %u succeeded in a child that was forked after cuInit", i);
}

/* ---- Contexts ---- */

static bool use(struct call *call, struct context *context) {
    if (context->serial != current_serial || random_once_in(&call->random, 32)) {
        CUresult result = CALL(set_current(context->handle));
        if (result != CUDA_SUCCESS) {
            wrong(call, "cuCtxSetCurrent gave %d", result);
            return false;
        }
        current_serial = context->serial;
    }
    call->context = context;
    call->device = context->device;
    call->gpu = context->gpu;
    atomic_store(&call->desk->gpu, context->gpu);
    return true;
}

bool use_context(struct call *call, struct context *context) {
    return use(call, context);
}

void current_changed(void) {
    current_serial = 0;
}

bool need_context(struct call *call) {
    CUcontext handle = NULL;
    if (get_current(&handle) != CUDA_SUCCESS)
        handle = NULL;
    struct context *context = context_find(handle);
    if (context != NULL && context->serial != current_serial)
        context = NULL; /* another by the same handle */
    if (context == NULL || random_once_in(&call->random, 8))
        context = context_random(&call->random);
    if (context == NULL) {
        call->desk->outcome = OUTCOME_NOTHING;
        say(call, "no context");
        return false;
    }
    return use(call, context);
}

/* ---- Orders that are no operations ---- */

release_function releases[KINDS];

/* Gives everything back, kind by kind, as a tidy program does; ends the contexts that hold what only their end gives back. */
static void free_all(struct call *call) {
    struct object object;
    say(call, "free everything");
    call->desk->outcome = OUTCOME_DONE;
    for (int kind = 0; kind < KINDS; kind++)
        while (object_take(&call->random, (enum kind)kind, -1, &object)) {
            for (int i = 0; i < CONTEXTS && object.context != 0; i++)
                if (context_at((unsigned)i)->handle != NULL && context_at((unsigned)i)->serial == object.context)
                    use(call, context_at((unsigned)i));
            if (object.context == 0)
                need_context(call);
            call->desk->outcome = call->desk->outcome == OUTCOME_WRONG ? OUTCOME_WRONG : OUTCOME_DONE;
            CUresult result = CALL(releases[kind](&object));
            if (result != CUDA_SUCCESS)
                wrong(call, "freeing %#llx of kind %d gave %d", (unsigned long long)object.handle, kind, result);
        }
    for (unsigned i = 0; i < CONTEXTS; i++)
        if (context_at(i)->handle != NULL && context_at(i)->sticky)
            context_end(call, context_at(i));
}

static void ask_info(struct call *call) {
    CUresult (*info)(size_t *, size_t *) = NULL;
    *(void **)&info = calls_find("cuMemGetInfo_v2");
    call->desk->outcome = OUTCOME_NOTHING;
    call->desk->reported_used = UINT64_MAX;
    for (unsigned i = 0; i < CONTEXTS; i++) {
        struct context *context = context_at(i);
        size_t free = 0, total = 0;
        if (context->handle == NULL || (uint64_t)context->gpu != call->desk->argument || !use(call, context))
            continue;
        CUresult result = CALL(info(&free, &total));
        say(call, "cuMemGetInfo: %zu of %zu MiB free", free >> 20, total >> 20);
        if (!expect(call, result, CUDA_SUCCESS, "cuMemGetInfo"))
            return;
        if (!board->bare && total != board->limit_bytes[context->gpu])
            wrong(call, "the limit is %llu", (unsigned long long)board->limit_bytes[context->gpu]);
        call->desk->reported_used = total - free;
        return;
    }
}

/* All that the claim has left, in one piece: there must be that much. */
static void take_whole(struct call *call) {
    CUresult (*allocate)(CUdeviceptr *, size_t) = NULL, (*release)(CUdeviceptr) = NULL;
    *(void **)&allocate = calls_find("cuMemAlloc_v2");
    *(void **)&release = calls_find("cuMemFree_v2");
    call->desk->outcome = OUTCOME_NOTHING;
    for (unsigned i = 0; i < CONTEXTS; i++) {
        struct context *context = context_at(i);
        if (context->handle == NULL || (uint64_t)context->gpu != call->desk->argument)
            continue;
        uint64_t whole = call->desk->room[context->gpu] / BLOCK * BLOCK;
        CUdeviceptr address, more;
        if (whole == 0 || !use(call, context))
            return;
        needs(call, whole);
        say(call, "cuMemAlloc_v2(%llu), all that is left", (unsigned long long)whole);
        if (!judged(call, CALL(allocate(&address, whole))))
            return;
        if (allocate(&more, BLOCK) == CUDA_SUCCESS)
            wrong(call, "and 2 MiB more");
        expect(call, CALL(release(address)), CUDA_SUCCESS, "cuMemFree_v2");
        return;
    }
}

static void obey(struct call *call) {
    struct desk *desk = call->desk;
    switch (desk->operation) {
    case ORDER_FREE_ALL:
        free_all(call);
        break;
    case ORDER_INFO:
        ask_info(call);
        break;
    case ORDER_WHOLE:
        take_whole(call);
        break;
    case ORDER_THREAD:
        life_thread((unsigned)desk->argument);
        break;
    case ORDER_FORK:
        life_fork(desk, (unsigned)desk->argument);
        break;
    case ORDER_EXEC:
        life_exec();
        break;
    case ORDER_EXIT:
        if (forked) /* another thread of the parent may have held what exit waits for */
            _exit(0);
        exit(0);
    case ORDER_EXIT_AT_ONCE:
        _exit(0);
    default:
        break;
    }
}

/* ---- Desks ---- */

static long futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *timeout) {
    return syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

static void perform(struct desk *desk) {
    struct call call = {.desk = desk, .random = desk->seed, .device = -1, .gpu = 0};
    desk->outcome = OUTCOME_NOTHING;
    desk->result = 0;
    desk->grows = false;
    desk->text[0] = '\0';
    desk->reported_used = UINT64_MAX;
    atomic_store(&desk->need, 0);
    atomic_store(&desk->also, 0);
    if (!board->crowd) /* which does not look at the clock */
        calls_begin(&call);
    if (desk->operation >= OPERATIONS_MAX && desk->operation > ORDER_WHOLE) {
        obey(&call);
        return;
    }
    if (atomic_load(&my_seat->cut_off)) {
        perform_cut_off(&call);
        return;
    }
    if (!make_ready(&call))
        return;
    if (desk->operation >= OPERATIONS_MAX) {
        pthread_rwlock_wrlock(&contexts_lock);
        obey(&call);
        pthread_rwlock_unlock(&contexts_lock);
        return;
    }
    const struct operation *operation = operation_at(desk->operation);
    if (operation->exclusive)
        pthread_rwlock_wrlock(&contexts_lock);
    else
        pthread_rwlock_rdlock(&contexts_lock);
    hesitate(call.random, &board->dials.hesitate);
    operation->perform(&call);
    hesitate(0, NULL);
    pthread_rwlock_unlock(&contexts_lock);
}

static void count(const struct desk *desk) {
    if (desk->operation >= OPERATIONS_MAX)
        return;
    struct totals *totals = &board->totals[desk->operation];
    atomic_fetch_add(&totals->tried, 1);
    atomic_fetch_add(&totals->done, desk->outcome == OUTCOME_DONE);
    atomic_fetch_add(&totals->refused, desk->outcome == OUTCOME_REFUSED);
}

static void report_finding(const struct desk *desk) {
    uint32_t none = 0;
    if (desk->outcome == OUTCOME_WRONG && atomic_compare_exchange_strong(&board->wrong, &none, 2)) {
        const struct operation *operation = operation_at(desk->operation);
        snprintf(board->wrong_text, TEXT_SIZE, "process %u (%d): %s: %.180s", my_seat_number, getpid(),
                 operation != NULL ? operation->name : "order", desk->text);
        atomic_store(&board->wrong, 1);
    }
}

static unsigned choose_operation(uint64_t *random) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < OPERATIONS_MAX; i++)
        sum += board->weights[i];
    uint64_t at = random_below(random, sum);
    for (unsigned i = 0; i < OPERATIONS_MAX; i++) {
        if (at < board->weights[i])
            return i;
        at -= board->weights[i];
    }
    return 0;
}

/* In a storm nobody gives orders: a thread does what it likes. */
static void storm_step(struct desk *desk, uint64_t *random) {
    uint64_t r = random_below(random, 1000);
    unsigned operation = choose_operation(random);
    desk->argument = 0;
    if (r < 4 && !board->no_fork) {
        operation = ORDER_FORK;
        desk->argument = SEATS; /* any that is free */
    } else if (r < 8 && !board->no_death && !seat_may_die(board, (unsigned)(my_seat - board->seats))) {
        /* an operation, then */
    } else if (r < 6 && !board->no_death) {
        atomic_store(&my_seat->ending, 1);
        operation = random_once_in(random, 2) ? ORDER_EXIT : ORDER_EXIT_AT_ONCE;
    } else if (r < 8 && !board->no_death) {
        operation = ORDER_EXEC;
    } else if (r < 16 && board->threads_max > 1) {
        operation = ORDER_THREAD;
        desk->argument = 1 + random_below(random, board->threads_max - 1);
    } else if (r < 20 && desk != &my_seat->desks[0]) {
        operation = ORDER_THREAD_END;
    }
    desk->operation = operation;
    desk->by_choice = true;
    desk->seed = random_next(random);
    for (int gpu = 0; gpu < GPUS; gpu++)
        desk->room[gpu] = UINT64_MAX;
}

static void end_with_conductor(void) {
    if (kill(board->conductor, 0) != 0 && errno == ESRCH)
        _exit(0);
}

static bool leaving(const struct desk *desk) {
    return desk->operation == ORDER_THREAD_END;
}

static void serve(unsigned number) {
    struct desk *desk = &my_seat->desks[number];
    static _Atomic uint64_t threads;
    uint64_t random = my_seat->seed ^ (number + 1 + 8 * atomic_fetch_add(&threads, 1)) * UINT64_C(0x9e3779b97f4a7c15);
    uint32_t done = atomic_load(&desk->done);
    for (;;) {
        if (atomic_load(&board->mode) == MODE_STORM) {
            atomic_store(&desk->waiting, 0);
            if (random % 1024 == 0)
                end_with_conductor();
            storm_step(desk, &random);
        } else {
            atomic_store(&desk->waiting, 1);
            if (atomic_load(&desk->order) == done) {
                const struct timespec timeout = {.tv_nsec = 100000000};
                futex(&desk->order, FUTEX_WAIT, done, &timeout);
                end_with_conductor();
                continue;
            }
            atomic_store(&desk->waiting, 0);
        }
        bool ordered = atomic_load(&desk->order) != done;
        if (!leaving(desk)) {
            perform(desk);
            count(desk);
            report_finding(desk);
        }
        bool leave = leaving(desk);
        if (leave)
            atomic_store(&desk->taken, 0);
        if (ordered) {
            atomic_store(&desk->done, ++done);
            futex(&desk->done, FUTEX_WAKE, 1, NULL);
        }
        if (leave)
            return;
    }
}

void *worker_thread(void *desk) {
    current_serial = 0;
    serve((unsigned)(uintptr_t)desk);
    return NULL;
}

void worker_serve(unsigned desk) {
    serve(desk);
    exit(0);
}

/* ---- Beginning ---- */

/* Writes where this thread is, in one line of the messages. */
static void write_stack(const char *why, const void *address) {
    void *frames[24];
    char line[2000];
    int count = backtrace(frames, sizeof frames / sizeof frames[0]);
    size_t length = (size_t)snprintf(line, sizeof line, "%s at %p in", why, address);
    for (int i = 3; i < count && length < sizeof line - 200; i++) {
        Dl_info where = {0};
        dladdr(frames[i], &where);
        const char *file = where.dli_fname != NULL ? strrchr(where.dli_fname, '/') : NULL;
        length += (size_t)snprintf(line + length, 200, " %s+%#tx(%s)", file != NULL ? file + 1 : "?",
                                   (char *)frames[i] - (char *)where.dli_fbase,
                                   where.dli_sname != NULL ? where.dli_sname : "");
    }
    fprintf(stderr, "%s\n", line);
}

/* A fault ends the process as it does any other. */
static void on_fault(int signal_number, siginfo_t *info, void *unused) {
    char why[16];
    (void)unused;
    snprintf(why, sizeof why, "signal %d", signal_number);
    write_stack(why, info->si_addr);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

/* For a thread that does not return in time (actor_print_stacks). */
static void on_print_stack(int signal_number) {
    (void)signal_number;
    write_stack("busy", NULL);
}

static void tell_of_faults(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    void *first;
    backtrace(&first, 1); /* loads what it needs */
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    sigaction(SIGABRT, &action, NULL);
    sigaction(SIGQUIT, &(struct sigaction){.sa_handler = on_print_stack, .sa_flags = SA_RESTART}, NULL);
}

static bool load(void) {
    char why[256];
    if (!calls_load(my_seat->seed % 2 == 0, why, sizeof why)) {
        fprintf(stderr, "campaign: cannot load the driver: %s\n", why);
        return false;
    }
    *(void **)&init = calls_find("cuInit");
    *(void **)&get_count = calls_find("cuDeviceGetCount");
    *(void **)&get_uuid = calls_find("cuDeviceGetUuid");
    *(void **)&set_current = calls_find("cuCtxSetCurrent");
    *(void **)&get_current = calls_find("cuCtxGetCurrent");
    return init != NULL && get_count != NULL && get_uuid != NULL && set_current != NULL && get_current != NULL;
}

static void sit_down(unsigned seat) {
    my_seat_number = seat;
    my_seat = &board->seats[seat];
    forget();
    for (unsigned i = 0; i < GPUS; i++) {
        atomic_store(&my_seat->slack[i], 0);
        atomic_store(&my_seat->contexts[i], 0);
    }
    for (unsigned i = 0; i < OFFERS; i++) {
        if (atomic_load(&my_seat->offers[i].sequence) % 2 != 0)
            atomic_fetch_add(&my_seat->offers[i].sequence, 1);
        atomic_store(&my_seat->offers[i].busy, 0);
    }
    for (unsigned i = 0; i < DESKS; i++) {
        atomic_store(&my_seat->desks[i].taken, i == 0);
        atomic_store(&my_seat->desks[i].waiting, 0);
    }
    for (unsigned i = 0; i < DESKS; i++) /* now the conductor goes on, if it waits for our exec */
        atomic_store(&my_seat->desks[i].done, atomic_load(&my_seat->desks[i].order));
}

void worker_forked(unsigned seat, uint32_t ticket) {
    if (!atomic_compare_exchange_strong(&board->seats[seat].state, &ticket, SEAT_SITTING_DOWN))
        _exit(0); /* the parent's death was noticed first, and the seat may be another's by now */
    forked = true;
    sit_down(seat);
    atomic_store(&my_seat->pid, getpid());
}

void worker_seated(void) {
    atomic_store(&my_seat->state, SEAT_ALIVE);
}

int worker_main(unsigned seat) {
    signal(SIGCHLD, SIG_IGN); /* children that end are nobody's business but the conductor's */
    tell_of_faults();
    sit_down(seat);
    seat_give_up_tickets(board, seat); /* of a thread that was about to fork when another called exec */
    family_give(board, seat);          /* if it called exec */
    seat_lives(my_seat, seat);
    atomic_store(&my_seat->cut_off, 0);
    atomic_store(&my_seat->initialised, 0);
    if (!load())
        return 1;
    atomic_store(&my_seat->pid, getpid());
    atomic_store(&my_seat->state, SEAT_ALIVE);
    worker_serve(0);
}

int probe_main(void) {
    my_seat = &board->seats[0];
    if (!load())
        return 1;
    for (unsigned i = 0; operation_at(i) != NULL; i++) {
        bool has = true;
        for (const char *at = operation_at(i)->needs; *at != '\0' && has;) {
            size_t length = strcspn(at, " ");
            has = calls_has(at, length);
            at += length + strspn(at + length, " ");
        }
        atomic_store(&board->enabled[i], has);
    }
    return 0;
}
