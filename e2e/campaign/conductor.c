#include "conductor.h"

#include <dirent.h>
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "calls.h"
#include "families/family.h"

enum { TRACE_LINES = 600 };

struct actor actors[SEATS];
uint64_t step_number;

/* What may be counted too much for processes that are dead, and whose children hold their files open. */
static int64_t slack_of_dead[GPUS];

static char lines[TRACE_LINES][400];
static unsigned line_count;
static char finding_text[600];
static bool verbose;

/* ---- What is told ---- */

bool found(const char *format, ...) {
    va_list arguments;
    if (finding_text[0] != '\0')
        return false;
    va_start(arguments, format);
    vsnprintf(finding_text, sizeof finding_text, format, arguments);
    va_end(arguments);
    return false;
}

bool any_finding(void) {
    return finding_text[0] != '\0';
}

const char *finding(void) {
    return finding_text;
}

void trace(const char *format, ...) {
    va_list arguments;
    char *line = lines[line_count++ % TRACE_LINES];
    int length = snprintf(line, sizeof lines[0], "%6llu  ", (unsigned long long)step_number);
    va_start(arguments, format);
    vsnprintf(line + length, sizeof lines[0] - (size_t)length, format, arguments);
    va_end(arguments);
    if (verbose)
        printf("%s\n", line);
}

void trace_print(void) {
    unsigned first = line_count > TRACE_LINES ? line_count - TRACE_LINES : 0;
    for (unsigned i = first; i < line_count; i++)
        printf("  %s\n", lines[i % TRACE_LINES]);
}

void conductor_begin(bool be_verbose) {
    verbose = be_verbose;
    finding_text[0] = '\0';
    line_count = 0;
    step_number = 0;
    memset(actors, 0, sizeof actors);
    memset(slack_of_dead, 0, sizeof slack_of_dead);
    prctl(PR_SET_CHILD_SUBREAPER, 1);                   /* the children of the dead become ours */
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); /* workers may take heirlooms */
}

/* ---- Processes ---- */

static struct seat *seat_at(unsigned seat) {
    return &node_board->seats[seat];
}

unsigned seat_free(void) {
    for (unsigned i = 0; i < SEATS; i++)
        if (!actors[i].alive && atomic_load(&seat_at(i)->state) == SEAT_FREE)
            return i;
    return SEATS;
}

unsigned actors_count(void) {
    unsigned count = 0;
    for (unsigned i = 0; i < SEATS; i++)
        count += actors[i].alive;
    return count;
}

unsigned actor_random(uint64_t *random, bool stopped) {
    unsigned start = (unsigned)random_below(random, SEATS);
    for (unsigned n = 0; n < SEATS; n++) {
        unsigned i = (start + n) % SEATS;
        if (actors[i].alive && actors[i].stopped == stopped)
            return i;
    }
    return SEATS;
}

/* Collects the statuses of whoever has ended. */
static void collect(void) {
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
        for (unsigned i = 0; i < SEATS; i++)
            if (actors[i].alive && actors[i].pid == pid)
                actors[i].status = status;
}

/* The seat of a dead process, and those that it had taken for children which it never came to fork. */
static void vacate(unsigned seat) {
    seat_give_up_tickets(node_board, seat);
    family_give(node_board, seat);
    atomic_store(&seat_at(seat)->state, SEAT_FREE);
}

bool actor_adopt(unsigned seat) {
    struct actor *actor = &actors[seat];
    pid_t pid = atomic_load(&seat_at(seat)->pid);
    *actor = (struct actor){.alive = true, .pid = pid, .status = -1};
    actor->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (actor->pidfd >= 0)
        return true;
    actor->alive = false;
    vacate(seat);
    return false;
}

bool actor_start(unsigned seat, uint64_t *random) {
    struct seat *place = seat_at(seat);
    char number[16];
    uint32_t free = SEAT_FREE;
    if (seat >= SEATS || !atomic_compare_exchange_strong(&place->state, &free, seat_ticket(node_board, SEATS)))
        return true; /* a worker was faster, for a child of its own */
    atomic_store(&place->pid, 0);
    atomic_store(&place->ending, 0);
    seat_lives(place, seat);
    atomic_store(&place->cut_off, 0);
    atomic_store(&place->initialised, 0);
    atomic_store(&place->stops, 0);
    place->seed = random_next(random);
    place->devices_variant =
        node_board->crowd ? CROWD_DEVICES_VARIANT : (unsigned)random_below(random, node_devices_variants());
    atomic_store(&place->claim, node_board->crowd ? 1 + (uint32_t)random_below(random, node_board->dials.claims) : 0);
    snprintf(number, sizeof number, "%u", seat);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        node_enter(place->devices_variant, atomic_load(&place->claim));
        signal(SIGINT, SIG_DFL);
        signal(SIGTERM, SIG_DFL);
        execl("/proc/self/exe", "campaign", "worker", number, (char *)NULL);
        _exit(127);
    }
    for (int i = 0; i < ANSWER_SECONDS * 1000 && pid > 0; i++) {
        int status;
        if (atomic_load(&place->state) == SEAT_ALIVE)
            return actor_adopt(seat);
        if (waitpid(pid, &status, WNOHANG) == pid) {
            /* In a storm, it may have come and gone. */
            if (atomic_load(&place->state) != SEAT_ALIVE || !atomic_load(&place->ending))
                break;
            vacate(seat);
            return true;
        }
        nanosleep(&(struct timespec){.tv_nsec = 300000}, NULL);
    }
    return found("a worker does not start");
}

void actor_signal(unsigned seat, int signal_number) {
    struct actor *actor = &actors[seat];
    if (signal_number == SIGKILL)
        actor->expected = true;
    if ((signal_number == SIGSTOP && !actor->stopped) || (signal_number == SIGCONT && actor->stopped)) {
        atomic_fetch_add(&seat_at(seat)->stops, 1);
        actor->stopped = !actor->stopped;
    }
    syscall(SYS_pidfd_send_signal, actor->pidfd, signal_number, NULL, 0);
}

void actor_print_stacks(unsigned seat) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", actors[seat].pid);
    DIR *threads = actors[seat].alive ? opendir(path) : NULL;
    for (struct dirent *thread; threads != NULL && (thread = readdir(threads)) != NULL;) {
        pid_t tid = (pid_t)strtol(thread->d_name, NULL, 10);
        if (tid > 0)
            syscall(SYS_tgkill, actors[seat].pid, tid, SIGQUIT);
    }
    if (threads != NULL)
        closedir(threads);
    nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL);
}

static bool is_dead(const struct actor *actor, int milliseconds) {
    struct pollfd poller = {.fd = actor->pidfd, .events = POLLIN};
    return poll(&poller, 1, milliseconds) > 0;
}

static bool any_cut_off(void) {
    for (unsigned i = 0; i < SEATS; i++)
        if (actors[i].alive && atomic_load(&seat_at(i)->cut_off))
            return true;
    return false;
}

static int64_t at_most_limit(int gpu, uint64_t bytes) {
    uint64_t limit = node_board->limit_bytes[gpu];
    return (int64_t)(bytes < limit ? bytes : limit);
}

/* A child that was forked may keep what the process held, and what it was about to take. */
void slack_stays(unsigned seat) {
    for (int gpu = 0; gpu < GPUS && any_cut_off(); gpu++) {
        slack_of_dead[gpu] += atomic_load(&seat_at(seat)->slack[gpu]);
        for (unsigned desk = 0; desk < DESKS; desk++)
            if (order_pending(seat, desk))
                slack_of_dead[gpu] += at_most_limit(gpu, need_of(&seat_at(seat)->desks[desk], gpu));
    }
}

static bool has_heirs(unsigned seat) {
    uint32_t family = atomic_load(&seat_at(seat)->family);
    for (unsigned i = 0; i < SEATS; i++)
        if (actors[i].alive && atomic_load(&seat_at(i)->cut_off) && atomic_load(&seat_at(i)->family) == family)
            return true;
    return false;
}

void freed_by_dead(unsigned seat, const struct reading *before, const struct reading *after) {
    for (int gpu = 0; gpu < GPUS && has_heirs(seat); gpu++) {
        if (after->bytes[gpu] >= before->bytes[gpu])
            continue;
        uint64_t freed = before->bytes[gpu] - after->bytes[gpu];
        trace("process %u: %llu bytes of GPU %d were freed, and may count as long as its children live", seat,
              (unsigned long long)freed, gpu);
        slack_of_dead[gpu] += (int64_t)freed;
    }
}

static void let_go(unsigned seat) {
    struct actor *actor = &actors[seat];
    collect();
    close(actor->pidfd);
    actor->alive = false;
    slack_stays(seat);
    for (int gpu = 0; gpu < GPUS; gpu++) {
        atomic_store(&seat_at(seat)->slack[gpu], 0);
        atomic_store(&seat_at(seat)->contexts[gpu], 0);
    }
    for (unsigned desk = 0; desk < DESKS; desk++) {
        atomic_store(&seat_at(seat)->desks[desk].taken, 0);
        atomic_store(&seat_at(seat)->desks[desk].done, atomic_load(&seat_at(seat)->desks[desk].order));
    }
    vacate(seat);
}

/* ---- Heirlooms ---- */

static void drop_heirloom(struct offer *heirloom) {
    if (atomic_load(&heirloom->sequence) % 2 == 0)
        return;
    atomic_fetch_add(&heirloom->sequence, 1);
    close(heirloom->what.descriptor);
}

void heirlooms_drop_one(uint64_t *random) {
    drop_heirloom(&node_board->heirlooms[random_below(random, HEIRLOOMS)]);
}

void heirlooms_drop(void) {
    for (unsigned i = 0; i < HEIRLOOMS; i++)
        drop_heirloom(&node_board->heirlooms[i]);
}

static void take_heirloom(struct offer *heirloom, const struct actor *actor, const struct offer *offer) {
    uint32_t sequence = atomic_load(&offer->sequence);
    struct offered what = offer->what;
    if (sequence % 2 == 0 || what.descriptor < 0 || atomic_load(&heirloom->sequence) % 2 != 0)
        return;
    int descriptor = (int)syscall(SYS_pidfd_getfd, actor->pidfd, what.descriptor, 0);
    if (descriptor >= 0 && atomic_load(&offer->sequence) != sequence) {
        close(descriptor); /* it may be something else */
        descriptor = -1;
    }
    if (descriptor < 0)
        return;
    what.pid = getpid();
    what.descriptor = descriptor;
    heirloom->what = what;
    atomic_fetch_add(&heirloom->sequence, 1);
    trace("the conductor keeps %llu bytes of GPU %d that process %d offers", (unsigned long long)what.size, what.gpu,
          actor->pid);
}

void heirlooms_take(unsigned seat, uint64_t random) {
    for (unsigned i = 0; i < OFFERS && !node_board->crowd; i++)
        take_heirloom(&node_board->heirlooms[(random + i) % HEIRLOOMS], &actors[seat], &seat_at(seat)->offers[i]);
}

bool actor_bury(unsigned seat) {
    if (!actors[seat].alive)
        return true;
    if (!is_dead(&actors[seat], ANSWER_SECONDS * 1000))
        return found("process %u (%d) does not end", seat, actors[seat].pid);
    let_go(seat);
    return true;
}

bool actors_look(void) {
    collect();
    for (unsigned i = 0; i < SEATS; i++) {
        if (!actors[i].alive || !is_dead(&actors[i], 0))
            continue;
        collect();
        int status = actors[i].status;
        bool expected = actors[i].expected || atomic_load(&seat_at(i)->ending);
        if (status != -1 && WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
            return found("process %u (%d) died of signal %d", i, actors[i].pid, WTERMSIG(status));
        if (!expected)
            return found("process %u (%d) ended by itself, with status %#x", i, actors[i].pid, (unsigned)status);
        let_go(i);
    }
    return true;
}

/* ---- Orders ---- */

static long futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *timeout) {
    return syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

void order_give(unsigned seat, unsigned desk, unsigned operation, uint64_t seed, uint64_t argument,
                const uint64_t room[GPUS]) {
    struct desk *place = &seat_at(seat)->desks[desk];
    place->operation = operation;
    place->by_choice = false;
    place->seed = seed;
    place->argument = argument;
    for (int gpu = 0; gpu < GPUS; gpu++)
        place->room[gpu] = node_board->bare ? UINT64_MAX : room[gpu];
    atomic_store(&place->need, 0);
    atomic_store(&place->also, 0);
    atomic_fetch_add(&place->order, 1);
    futex(&place->order, FUTEX_WAKE, 1, NULL);
}

bool order_pending(unsigned seat, unsigned desk) {
    struct desk *place = &seat_at(seat)->desks[desk];
    return atomic_load(&place->order) != atomic_load(&place->done);
}

bool order_await(unsigned seat, unsigned desk) {
    struct desk *place = &seat_at(seat)->desks[desk];
    for (int tries = 0; tries < ANSWER_SECONDS * 20; tries++) {
        uint32_t done = atomic_load(&place->done);
        if (done == atomic_load(&place->order))
            return true;
        if (is_dead(&actors[seat], 0)) {
            bool expected = actors[seat].expected;
            actors_look();
            return expected ? false : found("process %u died in the midst of an order", seat);
        }
        futex(&place->done, FUTEX_WAIT, done, &(struct timespec){.tv_nsec = 50000000});
    }
    return found("process %u (%d), thread %u does not answer", seat, actors[seat].pid, desk);
}

bool order(unsigned seat, unsigned desk, unsigned operation, uint64_t seed, uint64_t argument) {
    struct reading reading;
    uint64_t room[GPUS];
    node_read(&reading);
    rooms(&reading, room);
    order_give(seat, desk, operation, seed, argument, room);
    return order_await(seat, desk);
}

int64_t slack_of(int gpu) {
    int64_t sum = slack_of_dead[gpu];
    for (unsigned i = 0; i < SEATS; i++)
        if (actors[i].alive)
            sum += atomic_load(&seat_at(i)->slack[gpu]);
    return sum;
}

uint64_t need_of(const struct desk *desk, int gpu) {
    bool needed = atomic_load(&desk->gpu) == gpu || (atomic_load(&desk->also) >> gpu & 1) != 0;
    return needed ? atomic_load(&desk->need) : 0;
}

uint64_t under_way(int gpu) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < SEATS; i++)
        for (unsigned desk = 0; actors[i].alive && desk < DESKS; desk++)
            if (order_pending(i, desk))
                sum += need_of(&seat_at(i)->desks[desk], gpu);
    return sum;
}

void rooms(const struct reading *reading, uint64_t room[GPUS]) {
    for (int gpu = 0; gpu < GPUS; gpu++) {
        uint64_t taken = reading->bytes[gpu] + (uint64_t)slack_of(gpu) + under_way(gpu);
        uint64_t limit = node_board->limit_bytes[gpu];
        room[gpu] = limit > taken ? limit - taken : 0;
    }
}

/* ---- What is always so ---- */

static bool is_running(pid_t pid) {
    char path[64], state = 'Z';
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (file != NULL && fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
        state = 'Z';
    if (file != NULL)
        fclose(file);
    return state != 'T' && state != 'Z' && state != 'X';
}

void actors_stop(void) {
    for (unsigned i = 0; i < SEATS; i++) {
        if (!actors[i].alive && atomic_load(&seat_at(i)->state) == SEAT_ALIVE)
            actor_adopt(i);
        if (actors[i].alive)
            actor_signal(i, SIGSTOP);
    }
    for (unsigned i = 0, tries = 0; i < SEATS && tries < 1000;) {
        if (!actors[i].alive || !is_running(actors[i].pid)) {
            i++;
            continue;
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        tries++;
    }
}

void actors_tell_operations(void) {
    for (unsigned i = 0; i < SEATS * DESKS; i++) {
        const struct desk *desk = &seat_at(i / DESKS)->desks[i % DESKS];
        const struct operation *operation = operation_at(desk->operation);
        if (actors[i / DESKS].alive && atomic_load(&desk->taken))
            trace("process %u (%d), thread %u: %s%s: %.200s", i / DESKS, actors[i / DESKS].pid, i % DESKS,
                  operation != NULL ? operation->name : "an order", atomic_load(&desk->waiting) ? ", done" : "",
                  desk->text);
    }
}

void actors_tell_limit(void) {
    node_look();
    actors_stop();
    node_tell(trace);
    actors_tell_operations();
    trace("and now that all are stopped:");
    node_look();
    node_tell(trace);
}

bool check_limit(const struct reading *reading) {
    for (int gpu = 0; gpu < GPUS && !node_board->bare; gpu++) {
        uint64_t limit = node_board->limit_bytes[gpu];
        if (reading->peak[gpu] <= limit)
            continue;
        actors_tell_limit();
        return found("GPU %d: %llu bytes were physically taken (now %llu), over the limit of %llu", gpu,
                     (unsigned long long)reading->peak[gpu], (unsigned long long)reading->bytes[gpu],
                     (unsigned long long)limit);
    }
    return true;
}

static bool reported_right(uint64_t *random, int gpu, uint64_t expected) {
    for (unsigned i = 0; i < SEATS; i++) {
        if (!actors[i].alive || atomic_load(&seat_at(i)->contexts[gpu]) == 0)
            continue;
        struct desk *desk = &seat_at(i)->desks[0];
        if (!order(i, 0, ORDER_INFO, random_next(random), (uint64_t)gpu))
            return any_finding() ? false : found("process %u died when asked for cuMemGetInfo", i);
        if (desk->outcome == OUTCOME_WRONG)
            return found("process %u: %s", i, desk->text);
        if (desk->reported_used != expected && desk->reported_used != UINT64_MAX) {
            node_look();
            node_tell(trace);
            return found("GPU %d: cuMemGetInfo in process %u shows %llu bytes used, where contexts hold %llu", gpu, i,
                         (unsigned long long)desk->reported_used, (unsigned long long)expected);
        }
    }
    return true;
}

static bool whole_can_be_had(uint64_t *random, int gpu, uint64_t expected) {
    unsigned chosen = SEATS;
    uint64_t room[GPUS] = {0};
    for (unsigned i = 0; i < SEATS; i++)
        if (actors[i].alive && atomic_load(&seat_at(i)->contexts[gpu]) != 0 &&
            (chosen == SEATS || random_once_in(random, 2)))
            chosen = i;
    if (chosen == SEATS || node_board->bare)
        return true;
    struct desk *desk = &seat_at(chosen)->desks[0];
    room[gpu] = node_board->limit_bytes[gpu] - expected;
    order_give(chosen, 0, ORDER_WHOLE, random_next(random), (uint64_t)gpu, room);
    if (!order_await(chosen, 0))
        return any_finding() ? false : found("process %u died when it took all that was left", chosen);
    if (desk->outcome == OUTCOME_WRONG || desk->outcome == OUTCOME_REFUSED)
        return found("GPU %d: contexts hold %llu bytes and nothing else is taken, but process %u: %s", gpu,
                     (unsigned long long)expected, chosen, desk->text);
    return true;
}

static uint64_t contexts_bytes(int gpu) {
    uint64_t bytes = 0;
    for (unsigned i = 0; i < SEATS; i++)
        if (actors[i].alive)
            bytes += (uint64_t)atomic_load(&seat_at(i)->contexts[gpu]) * node_board->context_bytes[gpu];
    return bytes;
}

/* Children of processes with CUDA hold their parents' files open, and so their memory, even when these are dead. */
static bool end_cut_off(void) {
    for (unsigned i = 0; i < SEATS; i++) {
        if (!actors[i].alive || !atomic_load(&seat_at(i)->cut_off))
            continue;
        actor_signal(i, SIGKILL);
        if (!actor_bury(i))
            return false;
    }
    memset(slack_of_dead, 0, sizeof slack_of_dead);
    return true;
}

static bool settled(int gpu, uint64_t expected, bool patient, struct reading *reading) {
    for (int tries = 0;; tries++) {
        node_read(reading);
        if (reading->bytes[gpu] == expected || tries == (patient ? 200 : 0))
            return reading->bytes[gpu] == expected;
        collect();
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
}

bool check_quiet(uint64_t *campaign_random, bool patient) {
    struct reading reading;
    /* How often some question must be repeated is a matter of time, and must not change what comes later. */
    uint64_t own_random = random_next(campaign_random), *random = &own_random;
    heirlooms_drop();
    if (!end_cut_off())
        return false;
    for (unsigned i = 0; i < SEATS; i++) {
        if (!actors[i].alive)
            continue;
        if (!order(i, 0, ORDER_FREE_ALL, random_next(random), 0))
            return any_finding() ? false : found("process %u died when it freed everything", i);
        if (seat_at(i)->desks[0].outcome == OUTCOME_WRONG)
            return found("process %u: %s", i, seat_at(i)->desks[0].text);
    }
    for (int gpu = 0; gpu < GPUS; gpu++) {
        uint64_t expected = contexts_bytes(gpu);
        if (!settled(gpu, expected, patient, &reading))
            return found("GPU %d: everything is freed, contexts hold %llu bytes, but %llu are physically taken", gpu,
                         (unsigned long long)expected, (unsigned long long)reading.bytes[gpu]);
        if (!check_limit(&reading))
            return false;
        if (node_board->bare || node_board->limit_bytes[gpu] == 0)
            continue;
        if (!reported_right(random, gpu, expected))
            return false;
        uint64_t counted = node_counted_alive(gpu);
        if (counted != expected) {
            node_look();
            node_tell(trace);
            return found("GPU %d: everything is freed, contexts hold %llu bytes, but the region says %llu", gpu,
                         (unsigned long long)expected, (unsigned long long)counted);
        }
        if (!whole_can_be_had(random, gpu, expected))
            return false;
    }
    trace("quiet: nothing but contexts is left");
    return true;
}

bool actors_end(uint64_t *random) {
    heirlooms_drop();
    for (unsigned i = 0; i < SEATS; i++) {
        if (!actors[i].alive)
            continue;
        if (actors[i].stopped || random_once_in(random, 2)) {
            actor_signal(i, SIGKILL);
        } else {
            uint64_t room[GPUS] = {0};
            actors[i].expected = true;
            order_give(i, 0, random_once_in(random, 2) ? ORDER_EXIT : ORDER_EXIT_AT_ONCE, 0, 0, room);
        }
    }
    for (unsigned i = 0; i < SEATS; i++)
        if (!actor_bury(i))
            return false;
    return true;
}

bool check_dead(uint64_t *random) {
    struct reading reading;
    if (!actors_end(random))
        return false;
    for (int gpu = 0; gpu < GPUS; gpu++) {
        if (!settled(gpu, 0, true, &reading))
            return found("GPU %d: all are dead, but %llu bytes are physically taken", gpu,
                         (unsigned long long)reading.bytes[gpu]);
        uint64_t counted = node_counted_alive(gpu);
        if (counted != 0)
            return found("GPU %d: all are dead, but the region says %llu bytes", gpu, (unsigned long long)counted);
    }
    trace("all dead: nothing is left");
    return check_limit(&reading);
}
