/* Tests shares: memory that outlives the process that made it, held by processes that are killed and stopped at any
 * step. */
#include "descriptors.h"
#include "region/tags.h"
#include "region_steps.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const uint64_t tag = 0x0102030405060708;
static const uint64_t other_tag = 0x0102030405060709;

static uint64_t share_pages(const struct region *region, int share) {
    return atomic_load(&region->usage->slots[share].held[REGION_GPU].committed) & ((UINT64_C(1) << 40) - 1);
}

/* --- processes ---------------------------------------------------------------------------------------------------- */

/* What a child does once it has joined; then it stops. */
struct work {
    void (*before)(struct region *region);
    const char *step; /* armed after `before` */
    int signal;
    const char *last_step;
    void (*then)(struct region *region);
};

static int made;

static pid_t start(unsigned slot, struct work work) {
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    struct region region;
    die_with_parent();
    join_at(&region, slot);
    if (work.before != NULL)
        work.before(&region);
    arm(work.step, work.signal, work.last_step);
    if (work.then != NULL)
        work.then(&region);
    raise(SIGSTOP);
    _exit(0);
}

static void must(bool done, int code) {
    if (!done)
        _exit(code);
}

static void hold_30(struct region *region) {
    must(region_reserve(region, REGION_GPU, 30) == REGION_OK, 20);
}

static void make(struct region *region) {
    must((made = region_share_new(region, tag)) >= 0, 21);
}

static void hold_30_and_make(struct region *region) {
    hold_30(region);
    make(region);
}

static void adopt_12(struct region *region) {
    must(region_share_adopt(region, made, 12) == REGION_OK, 22);
}

static void make_and_adopt(struct region *region) {
    hold_30_and_make(region);
    adopt_12(region);
}

static void adopt_and_change(struct region *region) {
    adopt_12(region);
    must(region_share_reserve(region, made, 9) == REGION_OK, 23);
    region_share_release(region, made, 4);
    must(region_share_adopt(region, made, 3) == REGION_OK, 24);
    region_release(region, REGION_GPU, 5);
}

static void attach(struct region *region) {
    made = region_share_attach(region, tag);
}

static void attach_one(struct region *region) {
    attach(region);
    must(made >= 0, 25);
}

static void attach_none(struct region *region) {
    attach(region);
    must(made == -1, 26);
}

static void detach(struct region *region) {
    region_share_detach(region, made);
}

static void wait_to_go(struct region *region) {
    (void)region;
    raise(SIGSTOP);
}

static void reap(struct region *region) {
    region_reap(region);
}

/* Another process is served, and at once. */
static void check_served(struct region *region, const char *step) {
    double began = seconds();
    CHECK(region_reserve(region, REGION_GPU, 1) == REGION_OK, "%s: another process", step);
    region_release(region, REGION_GPU, 1);
    CHECK(seconds() - began < 1, "%s: another process waited %f s", step, seconds() - began);
}

static void start_claim(struct region *region) {
    fresh_claim();
    join_at(region, 9);
    CHECK(region_reserve(region, REGION_GPU, 7) == REGION_OK, "ours");
}

/* --- nobody is disturbed ------------------------------------------------------------------------------------------ */

static void test_one_process(void) {
    struct region region;
    start_claim(&region);
    CHECK(region_share_attach(&region, tag) == -1, "there is none");
    int share = region_share_new(&region, tag);
    int other = region_share_new(&region, other_tag);
    CHECK(share >= 0 && other >= 0 && share != other && share != region.slot, "shares %d and %d", share, other);
    CHECK(region_share_adopt(&region, share, 8) == REGION_FULL, "more than there is");
    CHECK(region_share_adopt(&region, share, 7) == REGION_OK, "all there is");
    CHECK_SUM(&region, 7u);
    CHECK(share_pages(&region, share) == 7 && share_pages(&region, region.slot) == 0, "moved");
    CHECK(region_share_reserve(&region, share, LIMIT_PAGES - 6) == REGION_FULL, "more than the limit");
    CHECK(region_share_reserve(&region, share, LIMIT_PAGES - 7) == REGION_OK, "up to the limit");
    CHECK(region_reserve(&region, REGION_GPU, 1) == REGION_FULL, "full");
    region_share_release(&region, share, 10);
    CHECK_SUM(&region, LIMIT_PAGES - 10);
    CHECK(region_share_attach(&region, tag) == share, "our own");
    CHECK(region_share_attach(&region, other_tag) == other, "our other");
    region_share_detach(&region, share);
    CHECK_SUM(&region, 0u);
    CHECK(region_share_attach(&region, tag) == -1, "it has ended");
    region_share_detach(&region, share);
    CHECK(region_share_reserve(&region, share, 1) == REGION_BROKEN, "not ours any more");
    CHECK(region_share_reserve(&region, 4096, 1) == REGION_BROKEN, "no slot");
    CHECK(region_share_reserve(&region, other, 3) == REGION_OK, "the other");
    errno = 77;
    CHECK(region_share_new(&region, tag) >= 0 && region_share_attach(&region, tag) >= 0, "another");
    CHECK(errno == 77, "errno %d", errno);
    region_close(&region);
    open_or_die(&region, true);
    region_reap(&region);
    CHECK_SUM(&region, 0u);
    region_close(&region);
}

static void count(int32_t pid, uint64_t pages, int32_t contexts, void *arg) {
    uint64_t *seen = arg;
    seen[0]++;
    seen[1] += pages;
    seen[2] += (uint64_t)contexts;
    seen[3] = pid == getpid() ? pages : seen[3];
}

static void name(struct region *region) {
    must(region_share_name(region, made, other_tag) >= 0, 27);
}

static void make_and_name(struct region *region) {
    make_and_adopt(region);
    name(region);
}

static unsigned count_names(const struct region *region) {
    unsigned names = 0;
    for (unsigned i = 0; i < REGION_SLOT_COUNT; i++)
        names += (atomic_load(&region->usage->slots[i].life) & 7) == REGION_KIND_NAME;
    return names;
}

/* A share is found by a further name until who gave it lets go of the share. */
static void test_names(void) {
    struct region region;
    start_claim(&region);
    pid_t maker = start(0, (struct work){.then = make_and_name});
    CHECK(wait_for(maker) == SIGSTOP, "maker");
    int share = region_share_attach(&region, other_tag);
    CHECK(share >= 0 && share_pages(&region, share) == 12, "share %d", share);
    CHECK(region_share_attach(&region, tag) == share, "by its first tag");
    CHECK(region_share_name(&region, share + 1, 3) == -1, "a share that is not held");
    kill_and_wait(maker);
    CHECK(region_share_attach(&region, other_tag) == -1, "who gave the name is dead");
    region_reap(&region);
    CHECK_SUM(&region, 19u);

    /* Another that is called so is found in spite of what is left of the first. A name takes a slot once. */
    int other = region_share_new(&region, 3), name = region_share_name(&region, other, other_tag);
    CHECK(name >= 0 && region_share_name(&region, other, other_tag) == name &&
              region_share_name(&region, other, 4) >= 0,
          "named anew");
    CHECK(region_share_name(&region, other, 3) == other, "its own tag");
    CHECK(region_share_attach(&region, other_tag) == other && region_share_attach(&region, 4) == other, "found");
    CHECK(count_names(&region) == 3, "%u names", count_names(&region)); /* one of the dead process */
    region_share_detach(&region, name);
    CHECK(region_share_attach(&region, other_tag) == -1 && region_share_attach(&region, 4) == other, "one name less");
    region_share_detach(&region, other);
    CHECK(count_names(&region) == 1 && region.names == 0, "%u names", count_names(&region));
    CHECK(region_share_attach(&region, 4) == -1, "the share has ended");
    region_share_detach(&region, share);
    CHECK_SUM(&region, 7u);

    /* Nor is a share found that ended without pages. */
    int empty = region_share_new(&region, other_tag);
    CHECK(empty >= 0 && region_share_attach(&region, other_tag) == empty, "share %d", empty);
    region_share_detach(&region, empty);
    CHECK(region_share_attach(&region, other_tag) == -1, "it has ended");
    region_close(&region);
}

/* --- exported descriptors ----------------------------------------------------------------------------------------- */

/* Descriptors as a driver returns them: new descriptions of one file. Those of an eventfd cannot be opened again, nor can
 * a dma-buf's. */
static int driver_file, file_to_parent[2];

static int exported_file(void) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", driver_file);
    return open(path, O_RDWR | O_CLOEXEC);
}

static int exported_event(void) {
    return eventfd(0, EFD_CLOEXEC);
}

static int (*new_descriptor)(void);

static void make_and_export(struct region *region) {
    make_and_adopt(region);
    int descriptor = new_descriptor();
    must(region_share_export(region, made, descriptor), 31);
    must(descriptor_send(file_to_parent[1], descriptor), 30);
}

static void make_export_and_detach(struct region *region) {
    make_and_export(region);
    region_share_detach(region, made);
}

/* Memory is counted as long as a descriptor of it is in flight or open, whether its maker has let go of it or is dead. */
static void test_exported(int (*descriptors)(void), void (*then)(struct region *), bool killed) {
    struct region region, looking;
    uint64_t found;
    start_claim(&region);
    open_or_die(&looking, false);
    new_descriptor = descriptors;
    pid_t maker = start(0, (struct work){.then = then});
    CHECK(wait_for(maker) == SIGSTOP, "maker");
    if (killed)
        kill_and_wait(maker);
    region_reap(&region);
    uint64_t rest = killed ? 0 : 18;
    CHECK_SUM(&region, 7 + 12 + rest);
    CHECK(region_used_bytes(&looking, REGION_GPU) == PAGE(7 + 12 + rest), "as a reader sees it");
    int descriptor = descriptor_receive(file_to_parent[0]);
    CHECK(tag_read(descriptor, &found) && found == tag, "the tag of the descriptor: %#llx", (unsigned long long)found);
    int share = region_share_attach(&region, found), copy = dup(descriptor);
    CHECK(share >= 0 && share_pages(&region, share) == 12, "share %d", share);
    close(descriptor);
    region_share_detach(&region, share);
    CHECK_SUM(&region, 7 + 12 + rest); /* the copy */
    share = region_share_attach(&region, tag);
    close(copy);
    region_reap(&region);
    CHECK_SUM(&region, 7 + 12 + rest); /* this process holds it */
    region_share_detach(&region, share);
    CHECK_SUM(&region, 7 + rest);
    CHECK(region_share_attach(&region, tag) == -1, "it has ended");
    if (!killed)
        kill_and_wait(maker);
    region_close(&looking);
    region_close(&region);
}

/* A process that has exported memory as another kind of file, and one that passes on what it got. */
static void test_exported_again(void) {
    struct region region;
    start_claim(&region);
    int share = region_share_new(&region, tag), first = exported_file(), second = exported_event();
    CHECK(region_share_reserve(&region, share, 12) == REGION_OK && region_share_export(&region, share, first) &&
              region_share_export(&region, share, second),
          "exported twice");
    region_share_detach(&region, share);
    region_reap(&region);
    CHECK_SUM(&region, 19u);
    close(first);
    region_reap(&region);
    CHECK_SUM(&region, 19u);
    close(second);
    region_reap(&region);
    CHECK_SUM(&region, 7u);
    CHECK(!region_share_export(&region, share, driver_file), "a share that is not held");
    region_close(&region);
}

/* Descriptors of other memory have no tag, or another one. */
static void test_other_descriptors(void) {
    uint64_t found = 5;
    int descriptor = exported_file();
    CHECK(tag_read(descriptor, &found) && found == 0, "none: %#llx", (unsigned long long)found);
    CHECK(tag_read(-1, &found) && found == 0, "no descriptor");
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 5, .l_len = 1};
    CHECK(fcntl(descriptor, F_OFD_SETLK, &lock) == 0 && tag_read(descriptor, &found) && found == 0, "a lock");
    lock.l_start = INT64_C(1) << 62 | 5;
    lock.l_len = 0;
    CHECK(fcntl(descriptor, F_OFD_SETLK, &lock) == 0 && tag_read(descriptor, &found) && found == 0, "a long lock");
    lock.l_type = F_UNLCK;
    fcntl(descriptor, F_OFD_SETLK, &lock);
    CHECK(tag_write(descriptor, 77) && tag_read(descriptor, &found) && found == 77, "%#llx", (unsigned long long)found);
    close(descriptor);
    CHECK(tag_new() != tag_new() && tag_new() >> 61 == 0, "new tags");
}

/* The program closes the witness, and another descriptor of that file, which has a tag itself, gets its number. */
static void test_witness_replaced(void) {
    _Atomic int witness = -1;
    struct tag_search search = {.witness = &witness};
    int descriptor = exported_file();
    uint64_t file = tag_file(descriptor);
    CHECK(tag_write(descriptor, 77) && tag_is_alive(&search, file, 77) && !tag_is_alive(&search, file, 78), "alive");
    int kept = witness;
    CHECK(kept >= 0 && kept != descriptor, "the witness is %d", kept);
    CHECK(dup2(descriptor, kept) == kept && close(descriptor) == 0, "replaced");
    CHECK(tag_is_alive(&search, file, 77) && witness != kept, "still alive, by another witness");
    close(kept);
    CHECK(!tag_is_alive(&search, file, 77), "gone");
    tag_search_end(&search);
    tag_close_witness(&witness);
}

static void test_exports(void) {
    driver_file = memfd_create("driver", MFD_CLOEXEC);
    must(driver_file >= 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, file_to_parent) == 0, 32);
    for (int killed = 0; killed < 2; killed++) {
        test_exported(exported_file, killed ? make_and_export : make_export_and_detach, killed);
        test_exported(exported_event, killed ? make_and_export : make_export_and_detach, killed);
    }
    test_exported_again();
    test_other_descriptors();
    test_witness_replaced();
}

static void test_maker_and_holders(void) {
    struct region region, looking;
    start_claim(&region);
    region_count_contexts(&region, 2);
    open_or_die(&looking, false);
    pid_t maker = start(0, (struct work){.then = make_and_adopt});
    CHECK(wait_for(maker) == SIGSTOP, "maker");
    pid_t second = start(1, (struct work){.then = attach_one});
    CHECK(wait_for(second) == SIGSTOP, "second holder");
    int share = region_share_attach(&region, tag);
    CHECK(share >= 0 && share_pages(&region, share) == 12, "share %d", share);
    CHECK_SUM(&region, 37u);
    for (int joined = 0; joined < 2; joined++) {
        uint64_t seen[4] = {0};
        CHECK(region_each(joined ? &region : &looking, count, seen) == 0, "each");
        CHECK(seen[0] == 3 && seen[1] == 25 && seen[2] == 2 && seen[3] == 7, "%d: %d processes, %d pages, %d contexts",
              joined, (int)seen[0], (int)seen[1], (int)seen[2]);
        CHECK(region_used_bytes(joined ? &region : &looking, REGION_GPU) == PAGE(37), "%d: used", joined);
    }
    CHECK(region_share_reserve(&region, share, 1) == REGION_BROKEN, "not the maker");
    kill_and_wait(maker);
    CHECK(region_used_bytes(&looking, REGION_GPU) == PAGE(19), "seen before it is reaped");
    region_reap(&region);
    CHECK_SUM(&region, 19u);
    region_share_detach(&region, share);
    CHECK_SUM(&region, 19u);
    kill_and_wait(second);
    region_reap(&region);
    CHECK_SUM(&region, 7u);
    CHECK(region_share_attach(&region, tag) == -1, "it has ended");
    region_close(&looking);
    region_close(&region);
}

/* While nobody has reaped what the last holder left, it can still be taken up: its memory may be on its way in a
 * message. */
static void test_taken_up(void) {
    struct region region;
    start_claim(&region);
    pid_t maker = start(0, (struct work){.then = make_and_adopt});
    CHECK(wait_for(maker) == SIGSTOP, "maker");
    kill_and_wait(maker);
    int share = region_share_attach(&region, tag);
    CHECK(share >= 0, "attached");
    region_reap(&region);
    CHECK_SUM(&region, 19u);
    region_share_detach(&region, share);
    CHECK_SUM(&region, 7u);
    region_close(&region);
}

/* --- a process that moves memory to its share --------------------------------------------------------------------- */

static const char *const move_steps[] = {"move: receiver announced", "move: announced", "move: before take",
                                         "move: taken", "move: committed"};
static const char *const help_steps[] = {"help: before receiver", "help: before receiver's commit",
                                         "help: before commit"};

static void test_mover(const char *step, int signal, bool attached) {
    struct region region;
    start_claim(&region);
    pid_t maker = start(0, (struct work){.before = make_and_adopt, .step = step, .signal = signal, .then = adopt_12});
    int share = -1;
    CHECK(wait_for(maker) == signal, "%s was not reached", step);
    if (signal == SIGKILL && !attached) {
        check_served(&region, step);
        region_reap(&region);
        CHECK_SUM(&region, 7u);
        region_close(&region);
        return;
    }
    if (attached) /* too late by now only if others have reaped it */
        CHECK((share = region_share_attach(&region, tag)) >= 0, "%s: attached", step);
    check_served(&region, step);
    region_reap(&region);
    uint64_t pages = share >= 0 ? share_pages(&region, share) : 0;
    CHECK(share < 0 || pages == 12 || pages == 24, "%s: %d pages", step, (int)pages);
    if (signal == SIGSTOP) {
        CHECK_SUM(&region, 37u);
        kill(maker, SIGCONT);
        CHECK(wait_for(maker) == SIGSTOP, "%s: goes on", step);
        CHECK_SUM(&region, 37u);
        pages = 24;
        kill_and_wait(maker);
    }
    region_reap(&region);
    CHECK_SUM(&region, 7u + (attached ? pages : 0));
    region_share_detach(&region, share);
    region_reap(&region);
    CHECK_SUM(&region, 7u);
    region_close(&region);
}

/* One stops or dies while it finishes the move of another, which is dead, or goes on and changes everything meanwhile. */
static void test_helper(const char *step, int signal, int mover_signal) {
    struct region region;
    start_claim(&region);
    /* It joins before, as who joins helps, too. */
    pid_t helper = start(1, (struct work){.before = wait_to_go, .step = step, .signal = signal, .then = reap});
    CHECK(wait_for(helper) == SIGSTOP, "helper");
    pid_t mover = start(
        0, (struct work){
               .before = hold_30_and_make, .step = "move: taken", .signal = mover_signal, .then = adopt_and_change});
    CHECK(wait_for(mover) == mover_signal, "mover");
    kill(helper, SIGCONT);
    CHECK(wait_for(helper) == signal, "%s was not reached", step);
    int share = region_share_attach(&region, tag);
    CHECK(share >= 0, "%s: attached", step);
    check_served(&region, step);
    CHECK_SUM(&region, 37u);
    CHECK(share_pages(&region, share) == 12, "%s: %d pages", step, (int)share_pages(&region, share));
    if (mover_signal == SIGSTOP) {
        kill(mover, SIGCONT);
        CHECK(wait_for(mover) == SIGSTOP, "%s: mover goes on", step);
        CHECK_SUM(&region, 37u);
        CHECK(share_pages(&region, share) == 20, "%s: %d pages", step, (int)share_pages(&region, share));
    }
    uint64_t pages = share_pages(&region, share);
    if (signal == SIGSTOP) {
        kill(helper, SIGCONT);
        CHECK(wait_for(helper) == SIGSTOP, "%s: helper goes on", step);
    }
    kill_and_wait(helper);
    CHECK(share_pages(&region, share) == pages, "%s: %d pages", step, (int)share_pages(&region, share));
    kill_and_wait(mover);
    region_reap(&region);
    CHECK_SUM(&region, 7 + pages);
    region_share_detach(&region, share);
    CHECK_SUM(&region, 7u);
    region_close(&region);
}

/* --- a process that makes one ------------------------------------------------------------------------------------- */

static const char *const make_steps[] = {"slot: before lock", "slot: locked", "slot: emptied",
                                         "share: named",      "share: alive", "share: open to all"};

static void test_maker(const char *step, int signal) {
    struct region region;
    start_claim(&region);
    pid_t maker = start(0, (struct work){.before = hold_30, .step = step, .signal = signal, .then = make_and_adopt});
    CHECK(wait_for(maker) == signal, "%s was not reached", step);
    check_served(&region, step);
    bool open = strcmp(step, "share: open to all") == 0;
    int share = region_share_attach(&region, tag);
    CHECK(open ? share >= 0 : share < 0 || signal == SIGKILL, "%s: share %d", step, share);
    region_share_detach(&region, share);
    if (signal == SIGSTOP) {
        kill(maker, SIGCONT);
        CHECK(wait_for(maker) == SIGSTOP, "%s: goes on", step);
        CHECK_SUM(&region, 67u);
        share = region_share_attach(&region, tag);
        CHECK(share >= 0 && share_pages(&region, share) == 12, "%s: share %d", step, share);
        region_share_detach(&region, share);
        kill_and_wait(maker);
    }
    region_reap(&region);
    CHECK_SUM(&region, 7u);
    region_close(&region);
}

/* --- a reaper and a newcomer -------------------------------------------------------------------------------------- */

static const char *const reaper_steps[] = {
    "reap: before question", "reap: dead",        "reap: ended", "reap: settled",      "reap: before announce",
    "reap: announced",       "reap: before take", "reap: taken", "help: before commit"};

/* Who comes before a share has ended has it, all of it and for good; who comes later has nothing. */
static void test_reaper(const char *step, int signal) {
    struct region region;
    start_claim(&region);
    pid_t maker = start(3, (struct work){.then = make_and_adopt});
    CHECK(wait_for(maker) == SIGSTOP, "maker");
    /* Only the share is left: the maker's own slot is reaped, and the share held by one who dies after that. */
    pid_t holder = start(1, (struct work){.then = attach_one});
    CHECK(wait_for(holder) == SIGSTOP, "holder");
    kill_and_wait(maker);
    region_reap(&region);
    CHECK_SUM(&region, 19u);
    kill_and_wait(holder);
    pid_t reaper = start(2, (struct work){.step = step, .signal = signal, .then = reap});
    CHECK(wait_for(reaper) == signal, "%s was not reached", step);

    int share = region_share_attach(&region, tag);
    bool early = strcmp(step, "reap: before question") == 0 || strcmp(step, "reap: dead") == 0;
    CHECK((share >= 0) == early, "%s: share %d", step, share);
    check_served(&region, step);
    region_reap(&region);
    CHECK_SUM(&region, early ? 19u : 7u);
    /* And whoever has the slot next is not disturbed when the reaper goes on. */
    pid_t heir = start(4, (struct work){.then = make_and_adopt});
    CHECK(wait_for(heir) == SIGSTOP, "heir");
    CHECK_SUM(&region, early ? 49u : 37u);
    if (signal == SIGSTOP) {
        kill(reaper, SIGCONT);
        CHECK(wait_for(reaper) == SIGSTOP, "%s: goes on", step);
        CHECK_SUM(&region, early ? 49u : 37u);
    }
    kill_and_wait(reaper);
    kill_and_wait(heir);
    region_reap(&region);
    CHECK_SUM(&region, early ? 19u : 7u);
    region_share_detach(&region, share);
    CHECK_SUM(&region, 7u);
    region_close(&region);
}

static const char *const attach_steps[] = {"attach: before lock", "attach: locked", "attach: alive"};

/* `reused`: before the newcomer goes on, the slot has become another's share, or nobody has it. */
static void test_newcomer(const char *step, int signal, bool reused) {
    struct region region;
    start_claim(&region);
    pid_t maker = start(3, (struct work){.then = make_and_adopt});
    CHECK(wait_for(maker) == SIGSTOP, "maker");
    bool late = strcmp(step, "attach: before lock") == 0;
    pid_t newcomer = start(1, (struct work){.step = step, .signal = signal, .then = late ? attach_none : attach_one});
    CHECK(wait_for(newcomer) == signal, "%s was not reached", step);
    kill_and_wait(maker);
    check_served(&region, step);
    region_reap(&region);
    bool holds = signal == SIGSTOP && !late;
    CHECK_SUM(&region, holds ? 19u : 7u);
    if (reused) {
        atomic_store(&region.usage->next_slot, 4);
        int share = region_share_new(&region, other_tag);
        CHECK((share == 4) == !holds, "slot %d", share);
        CHECK(region_share_adopt(&region, share, 5) == REGION_OK, "%s: adopt", step);
    }
    if (signal == SIGSTOP) {
        kill(newcomer, SIGCONT);
        CHECK(wait_for(newcomer) == SIGSTOP, "%s: goes on", step);
        region_reap(&region);
        CHECK_SUM(&region, holds ? 19u : 7u);
        kill_and_wait(newcomer);
    }
    region_reap(&region);
    CHECK_SUM(&region, 7u);
    region_close(&region);
}

static void test_detacher(const char *step, int signal) {
    struct region region;
    start_claim(&region);
    pid_t maker = start(3, (struct work){.before = make_and_adopt, .step = step, .signal = signal, .then = detach});
    CHECK(wait_for(maker) == signal, "%s was not reached", step);
    check_served(&region, step);
    region_reap(&region);
    CHECK_SUM(&region, signal == SIGSTOP ? 25u : 7u);
    if (signal == SIGSTOP) {
        kill(maker, SIGCONT);
        CHECK(wait_for(maker) == SIGSTOP, "%s: goes on", step);
        CHECK_SUM(&region, 25u);
    }
    kill_and_wait(maker);
    region_reap(&region);
    CHECK_SUM(&region, 7u);
    region_close(&region);
}

static void test_every_step(void) {
    static const int signals[] = {SIGKILL, SIGSTOP};
    static const char *const detach_steps[] = {"detach: unlocked"};
    for (unsigned s = 0; s < COUNT(signals); s++) {
        for (unsigned i = 0; i < 2 * COUNT(move_steps); i++)
            test_mover(move_steps[i / 2], signals[s], i % 2);
        for (unsigned i = 0; i < 2 * COUNT(help_steps); i++)
            test_helper(help_steps[i / 2], signals[s], signals[i % 2]);
        for (unsigned i = 0; i < COUNT(make_steps); i++)
            test_maker(make_steps[i], signals[s]);
        for (unsigned i = 0; i < COUNT(reaper_steps); i++)
            test_reaper(reaper_steps[i], signals[s]);
        for (unsigned i = 0; i < 2 * COUNT(attach_steps); i++)
            test_newcomer(attach_steps[i / 2], signals[s], i % 2);
        test_detacher(detach_steps[0], signals[s]);
    }
}

/* --- what programs do --------------------------------------------------------------------------------------------- */

/* Programs close descriptors that they do not know, and open others under the same number. */
static void close_all(struct region *region) {
    make_and_adopt(region);
    for (int fd = 3; fd < 100; fd++)
        close(fd);
    raise(SIGSTOP);
    for (int i = 0; i < 5; i++)
        must(open(i % 2 ? "/dev/null" : region->usage_path, O_RDWR) >= 0, 30);
}

static void go_on(struct region *region) {
    int first = made, second = region_share_new(region, other_tag);
    must(second >= 0 && second != first, 31);
    must(region_share_adopt(region, second, 4) == REGION_OK, 32);
    must(region_share_reserve(region, first, 1) == REGION_OK, 33);
    raise(SIGSTOP);
    region_share_detach(region, first);
    raise(SIGSTOP);
    region_share_detach(region, second);
}

static void test_closed_descriptors(void) {
    struct region region;
    start_claim(&region);
    pid_t pid = start(0, (struct work){.before = close_all, .then = go_on});
    CHECK(wait_for(pid) == SIGSTOP, "made and closed");
    region_reap(&region);
    CHECK_SUM(&region, 37u);
    kill(pid, SIGCONT);
    CHECK(wait_for(pid) == SIGSTOP, "made another");
    region_reap(&region);
    CHECK_SUM(&region, 38u);
    kill(pid, SIGCONT);
    CHECK(wait_for(pid) == SIGSTOP, "let go of the first");
    CHECK_SUM(&region, 25u);
    int share = region_share_attach(&region, other_tag);
    CHECK(share >= 0, "the second is there");
    kill(pid, SIGCONT);
    CHECK(wait_for(pid) == SIGSTOP, "let go of the second");
    CHECK_SUM(&region, 25u);
    region_share_detach(&region, share);
    CHECK_SUM(&region, 21u);
    kill_and_wait(pid);
    region_reap(&region);
    CHECK_SUM(&region, 7u);
    region_close(&region);
}

static void leave_child(struct region *region) {
    make_and_adopt(region);
    pid_t maker = getpid();
    if (fork() == 0) {
        die_with_parent();
        while (getppid() == maker)
            pause();
        _exit(0);
    }
}

/* A child that its maker has forked keeps nobody from giving a share back. */
static void test_child_of_the_maker(void) {
    struct region region;
    start_claim(&region);
    pid_t pid = start(0, (struct work){.before = leave_child, .then = detach});
    CHECK(wait_for(pid) == SIGSTOP, "detached");
    CHECK_SUM(&region, 25u);
    CHECK(region_share_attach(&region, tag) == -1, "it has ended");
    kill_and_wait(pid);
    for (double began = seconds(); seconds() - began < 5 && region_used_bytes(&region, REGION_GPU) != PAGE(7);)
        region_reap(&region);
    CHECK_SUM(&region, 7u);
    region_close(&region);
}

/* --- at random ---------------------------------------------------------------------------------------------------- */

#define WORKERS 12
#define NAMES 24

struct board {
    _Atomic uint64_t number[NAMES]; /* 0 is none; the pages are number % 64 */
    _Atomic uint64_t last;
    _Atomic uint64_t adopted, attached, late;
};

static struct board *board;

#define OURS_MAX 8

struct worker {
    struct region region;
    uint64_t held;
    int shares[OURS_MAX];
    uint64_t pages[OURS_MAX];
    unsigned count;
};

/* The tag is the number, which says how much the share is: its maker never changes that once it has told others. */
static uint64_t pages_of_number(uint64_t number) {
    return number % 64;
}

static void take_or_give(struct worker *worker) {
    uint64_t pages = 1 + (uint64_t)random() % 100;
    if (random() % 2 && worker->held >= pages) {
        region_release(&worker->region, REGION_GPU, pages);
        worker->held -= pages;
        return;
    }
    enum region_result result = region_reserve(&worker->region, REGION_GPU, pages);
    must(result != REGION_BROKEN, 40);
    worker->held += result == REGION_OK ? pages : 0;
}

static void publish(struct worker *worker) {
    uint64_t number = atomic_fetch_add(&board->last, 1) + 1, pages = pages_of_number(number);
    uint64_t more = (uint64_t)random() % 10;
    if (worker->count == OURS_MAX || worker->held < pages)
        return;
    int share = region_share_new(&worker->region, number);
    must(share >= 0, 41);
    must(region_share_adopt(&worker->region, share, pages) == REGION_OK, 42);
    worker->held -= pages;
    if (region_share_reserve(&worker->region, share, more) == REGION_OK)
        region_share_release(&worker->region, share, more);
    atomic_store(&board->number[random() % NAMES], number);
    atomic_fetch_add(&board->adopted, 1);
    worker->shares[worker->count] = share;
    worker->pages[worker->count++] = pages_of_number(number);
}

static void take_part(struct worker *worker) {
    uint64_t number = atomic_load(&board->number[random() % NAMES]);
    if (number == 0 || worker->count == OURS_MAX)
        return;
    int share = region_share_attach(&worker->region, number);
    atomic_fetch_add(share < 0 ? &board->late : &board->attached, 1);
    for (unsigned i = 0; i < worker->count; i++)
        if (share < 0 || worker->shares[i] == share)
            return;
    if (share < 0)
        return;
    worker->shares[worker->count] = share;
    worker->pages[worker->count++] = pages_of_number(number);
}

static void leave(struct worker *worker) {
    if (worker->count == 0)
        return;
    unsigned which = (unsigned)random() % worker->count;
    region_share_detach(&worker->region, worker->shares[which]);
    worker->shares[which] = worker->shares[--worker->count];
    worker->pages[which] = worker->pages[worker->count];
}

static void work(unsigned seed) {
    static struct worker worker;
    die_with_parent();
    srandom(seed);
    open_or_die(&worker.region, true);
    for (;;) {
        unsigned what = (unsigned)random() % 16;
        if (what == 0)
            publish(&worker);
        else if (what == 1)
            take_part(&worker);
        else if (what < 4)
            leave(&worker);
        else
            take_or_give(&worker);
        /* What we hold is there, all of it, whoever made it and whether or not that one lives. */
        for (unsigned i = 0; i < worker.count; i++)
            must(share_pages(&worker.region, worker.shares[i]) == worker.pages[i], 43);
        must(share_pages(&worker.region, worker.region.slot) == worker.held, 44);
        if (random() % 20000 == 0)
            _exit(0);
    }
}

static void test_random_campaign(unsigned seed, double duration) {
    struct region region;
    pid_t workers[WORKERS] = {0};
    unsigned long rounds = 0, killed = 0, ended = 0;
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED)
        abort();
    fresh_claim();
    open_or_die(&region, true);
    srandom(seed);
    for (double end = seconds() + duration; seconds() < end; rounds++) {
        for (unsigned i = 0; i < WORKERS; i++) {
            unsigned child_seed = (unsigned)random();
            if (workers[i] == 0 && (workers[i] = fork()) == 0)
                work(child_seed);
        }
        struct timespec pause = {.tv_nsec = random() % 9000000};
        nanosleep(&pause, NULL);
        kill(workers[random() % WORKERS], SIGKILL);
        for (unsigned i = 0; i < WORKERS; i++)
            kill(workers[i], SIGSTOP);
        for (unsigned i = 0; i < WORKERS; i++) {
            int status;
            while (waitpid(workers[i], &status, WUNTRACED) < 0 && errno == EINTR)
                ;
            if (WIFSTOPPED(status))
                continue;
            CHECK(!WIFEXITED(status) || WEXITSTATUS(status) == 0, "seed %u: a worker says %d", seed,
                  WEXITSTATUS(status));
            killed += WIFSIGNALED(status);
            ended += WIFEXITED(status);
            workers[i] = 0;
        }
        struct sum sum = sum_of(region.usage, REGION_GPU);
        CHECK(sum.total <= LIMIT_PAGES, "seed %u: %llu pages", seed, (unsigned long long)sum.total);
        CHECK(sum.committed == sum.total, "seed %u: slots hold %llu, total says %llu", seed,
              (unsigned long long)sum.committed, (unsigned long long)sum.total);
        double began = seconds();
        region_reap(&region);
        enum region_result result = region_reserve(&region, REGION_GPU, 1);
        CHECK(result != REGION_BROKEN, "seed %u: broken", seed);
        if (result == REGION_OK)
            region_release(&region, REGION_GPU, 1);
        CHECK(seconds() - began < 1, "seed %u: waited %f s", seed, seconds() - began);
        for (unsigned i = 0; i < WORKERS; i++)
            if (workers[i] != 0)
                kill(workers[i], SIGCONT);
    }
    for (unsigned i = 0; i < WORKERS; i++)
        if (workers[i] != 0)
            kill_and_wait(workers[i]);
    region_reap(&region);
    CHECK_SUM(&region, 0u);
    CHECK(rounds > 10 && killed > 5 && board->adopted > 20 && board->attached > 5,
          "%lu rounds, %lu killed, %lu adopted, %lu attached", rounds, killed, (unsigned long)board->adopted,
          (unsigned long)board->attached);
    printf(
        "campaign of shares: seed %u, %lu rounds, %lu processes killed, %lu ended; %lu made, %lu attached, %lu late\n",
        seed, rounds, killed, ended, (unsigned long)board->adopted, (unsigned long)board->attached,
        (unsigned long)board->late);
    region_close(&region);
    munmap(board, sizeof *board);
}

int main(int argc, char **argv) {
    unsigned seed = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : (unsigned)time(NULL);
    double duration = argc > 2 ? strtod(argv[2], NULL) : 3;
    checks_start();
    directory = fixture_directory();
    alarm((unsigned)duration + 120); /* a test that hangs has failed */
    test_one_process();
    test_names();
    test_exports();
    test_maker_and_holders();
    test_taken_up();
    test_every_step();
    test_closed_descriptors();
    test_child_of_the_maker();
    test_random_campaign(seed, duration);
    return checks_report();
}
