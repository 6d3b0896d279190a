/*
 * The protocol by which processes account for GPU memory without locks.
 *
 * Each kind of memory has a ledger of its own; the ledgers are independent. The sum of a ledger is one word, `total` =
 * {seq, slot, pages}: the sum in pages, and the operation of which slot produced it. The pages that a slot holds are
 * its word `committed` = {seq, pages}. An operation (taking pages or giving them back) has three steps:
 *
 *   announce   op[s] = {q, delta}             q is the slot's next sequence number: committed[s].seq + 1
 *   take       total: w -> {q, s, w.pages+delta}   one compare-and-swap: the check against the limit and the reservation
 *   commit     committed[s]: {q-1, p} -> {q, p+delta}
 *
 * A `total` that names an operation must not be replaced before that operation is committed. So a process that is about
 * to take first commits the operation that `total` names: it "helps". Everything needed for that is in shared memory,
 * so it does not matter whether the process that took is running, stopped or dead. Helpers, which may be late, commit by
 * compare-and-swap; the owner stores, since only the owner goes on from there. From this follow the invariants:
 *
 *   I1  An operation that was taken and is not committed is the one that `total` names. Hence the sum over all slots of
 *       committed.pages differs from total.pages by at most one operation, whose delta can be read in op.
 *   I2  If w was read from `total`, w does not name (s, q), and committed[s].seq == q-1 is read afterwards, then q was
 *       not taken before w was read. (Had it been, `total` moved on from naming it only after committed[s].seq reached q.)
 *   I3  If in addition the compare-and-swap from that w succeeds, q had not been taken until then: it is taken once.
 *   I4  op[s] = {q, delta} does not change between taking and committing q. The owner announces q+1 only after it has seen
 *       q committed; other processes announce only in slots of dead processes, as described below.
 *
 * An operation that was announced and never taken (it did not fit, or its process died) had no effect. The next
 * announcement overwrites it.
 *
 * Moving. A process that owns two slots s and t moves n pages from s to t by one operation, which leaves the sum
 * unchanged:
 *
 *   announce   op[t] = {r, +n}, then op[s] = {q, move to t, n}        r is t's next sequence number, q that of s
 *   take       total: w -> {q, s, w.pages}
 *   commit     committed[t]: {r-1, x} -> {r, x+n}, then committed[s]: {q-1, p} -> {q, p-n}
 *
 * Taking q takes r too, which `total` never names. While committed[s] is {q-1, p}, the owner has not announced anything
 * else, so op[t] is still {r, +n}. A helper reads op[t] and committed[t] first, and commits r only if committed[s] is
 * unchanged after that: then what it read of t belongs to this operation. The compare-and-swap from a committed[t]
 * whose sequence number is r-1 succeeds only once. A `total` that names the move is replaced only after committed[s]
 * has reached q, hence after committed[t] has reached r. So I1 to I4 hold for t's operation r as well, with "names (s,
 * q)" for "names (t, r)". In I1, two slots then differ from their final values, by amounts that cancel out.
 *
 * Slots of dead processes. A process owns slot s as long as it holds a lock on the slot's byte, by an open file
 * description (F_OFD_SETLK, fcntl(2)). The kernel drops the lock with the last reference to the description, and other
 * processes can query it. A process that finds a slot with pages and without a lock may give the pages back ("reap").
 * Several may do so at once, and none delays the others if it stops half-way:
 *
 *   1  help; c = committed[s] = {q-1, p}, p > 0
 *   2  query the lock: there is none. The process that wrote c is dead, or never writes again if c is still there in step 3.
 *   3  help; o = op[s]; committed[s] is still c
 *   4  announce by compare-and-swap: op[s]: o -> {q, -p}
 *   5  take as above, but before each attempt committed[s] must still be c
 *
 * Step 3 comes after step 2. So either the dead process's operation is now committed, or c is still there, and q was
 * never taken (I2) and never will be by the dead process. Hence the announcement in step 4 changes no delta that is
 * still needed (I4). Step 4 fails if another reaper was faster. Two reapers of the same c announce the same {q, -p},
 * which counts once by I3. A new owner of the slot, whose lock shows that the former owner is dead, does the same
 * before its first own operation; so what a reaper finds there later differs from c, or p was 0 and there was nothing
 * to reap. A reaper that was stopped between any two steps and continues later fails in step 3, 4 or 5.
 *
 * Shares. A share is a slot on whose byte any number of processes hold a read lock. Its maker writes in it as if it
 * owned the slot, as long as it has such a lock itself; the other processes only hold the share. As above, without a
 * lock there is no maker. But a process may lock the share just after a reaper has found no lock, and must then not
 * assume that the share is still counted. The slot's word `life` = {generation, kind} decides between the two. Between
 * steps 2 and 3,
 *
 *   a reaper    has read life = {g, share} after step 1 and before step 2, and now changes it to {g+1, ended}, or
 *               starts again;
 *   a newcomer  locks, then changes life from {g, share} to {g+1, share}; if it finds another kind, it is too late.
 *
 * Once the newcomer has changed `life`, a reaper that read it before fails, and one that reads it afterwards finds the
 * lock. Once a reaper has ended the share, it stays ended until a new owner has locked the slot for writing (which is
 * impossible while any process holds it), emptied it as above and given it a new `life`. So c of an ended share is
 * final; if it was read before `life`, it is the share's own and no successor's. No query of the lock is needed then:
 * any process can go on with step 3.
 *
 * The driver keeps a share's memory, too, as long as a descriptor is open that it was exported as. So in step 2 the
 * reaper also queries, after the lock, whether any open file description has the share's tag (tags.h). Only a process
 * that holds the share exports it: it writes `target` and the tag while it does. Whoever takes the memory from a
 * descriptor attaches to the share before it closes that. So if the reaper finds neither a lock nor then a description,
 * and `life` is unchanged, there is none.
 *
 * Sequence numbers have 24 bits. A process that stops between reading a word and its compare-and-swap is misled only if
 * the word has the same value in every bit after a multiple of 2^24 operations.
 *
 * Damage. The protocol trusts the file, and any process of the claim can write to it. So each process remembers the
 * `committed` of its own slots; a process that reads all slots compares their sum with `total`; and both files' headers
 * are checked before and after each operation. A region that was found broken stays broken and grants nothing. If a file
 * is truncated, the kernel ends the program that next uses the page which is gone (SIGBUS).
 */
#include "region/words.h"
#include "system/calls.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define REAP_ATTEMPTS 64
#define CHECK_ATTEMPTS 3

/* Slots among which a process searches first, and refusals after which it searches in twice as many. */
#define SLOTS_FIRST 64u
#define REFUSED_MAX 16u

/* Commits the receiving half of a move. `committed` is the sender's word before the move. */
__attribute__((noinline, cold)) static void help_receiver(struct region_usage *usage, enum region_ledger ledger,
                                                          struct region_held *sender, uint64_t committed, uint64_t op) {
    struct region_held *receiver = &usage->slots[move_receiver(op)].held[ledger];
    uint64_t announced = atomic_load(&receiver->op);
    uint64_t before = atomic_load(&receiver->committed);
    STEP("help: before receiver");
    if (atomic_load(&sender->committed) != committed || next_seq(seq_of(before)) != seq_of(announced))
        return;
    STEP("help: before receiver's commit");
    uint64_t pages = add_pages(committed_pages(before), (int64_t)move_pages(op));
    atomic_compare_exchange_strong(&receiver->committed, &before, committed_word(seq_of(announced), pages));
}

/* Commits the operation that `total` names, if it is not committed yet. */
static inline void help(struct region_usage *usage, enum region_ledger ledger, uint64_t total) {
    uint64_t seq = seq_of(total);
    if (seq == 0)
        return;
    struct region_held *held = &usage->slots[total_slot(total)].held[ledger];
    uint64_t committed = atomic_load(&held->committed);
    if (next_seq(seq_of(committed)) != seq)
        return;
    uint64_t op = atomic_load(&held->op);
    if (seq_of(op) != seq)
        return;
    if (op_moves(op))
        help_receiver(usage, ledger, held, committed, op);
    STEP("help: before commit");
    uint64_t after = committed_word(seq, add_pages(committed_pages(committed), op_change(op)));
    atomic_compare_exchange_strong(&held->committed, &committed, after);
}

/* Reads `total` after committing the operation that it names. */
static uint64_t settled_total(struct region_usage *usage, enum region_ledger ledger) {
    uint64_t total = atomic_load(&usage->sums[ledger].total);
    help(usage, ledger, total);
    return total;
}

/* --- operations --------------------------------------------------------------------------------------------------- */

static uint64_t limit_pages(const struct region *region, enum region_ledger ledger) {
    uint64_t bytes = region_limit_bytes(region, ledger), uncounted = region_uncounted_bytes(region, ledger);
    uint64_t pages = bytes > uncounted ? (bytes - uncounted) >> REGION_PAGE_SHIFT : 0;
    return pages > PAGES_MAX ? PAGES_MAX : pages;
}

static enum region_result broken(struct region *region) {
    atomic_store(&region->broken, true);
    return REGION_BROKEN;
}

/* The result of an operation, if the region was intact until its end. */
static enum region_result if_intact(struct region *region, enum region_result result) {
    return region_mapped_intact(region) ? result : broken(region);
}

enum region_result region_operate(struct region *region, enum region_ledger ledger, unsigned slot, uint64_t *expected,
                                  int64_t delta) {
    struct region_usage *usage = region->usage;
    struct region_sum *sum = &usage->sums[ledger];
    struct region_held *held = &usage->slots[slot].held[ledger];
    if (!region_mapped_intact(region) || atomic_load(&held->committed) != *expected)
        return broken(region);
    uint64_t ours = committed_pages(*expected), seq = next_seq(seq_of(*expected));
    if (delta < 0 && (uint64_t)-delta > ours)
        return REGION_FULL;
    atomic_store_explicit(&held->op, op_word(seq, delta), memory_order_release);
    STEP("operate: announced");
    for (;;) {
        uint64_t before = settled_total(usage, ledger);
        if (total_pages(before) < ours)
            return broken(region);
        uint64_t pages = total_pages(before) + (uint64_t)delta;
        if (delta > 0 && pages > limit_pages(region, ledger))
            return if_intact(region, REGION_FULL);
        uint64_t after = total_word(seq, slot, pages);
        STEP("operate: before take");
        if (atomic_compare_exchange_strong(&sum->total, &before, after)) {
            STEP("operate: taken");
            *expected = committed_word(seq, ours + (uint64_t)delta); /* a helper may have committed it already */
            atomic_store_explicit(&held->committed, *expected, memory_order_release);
            STEP("operate: committed");
            if (delta > 0)
                raise_to(&sum->peak_pages, pages);
            return if_intact(region, REGION_OK);
        }
    }
}

enum region_result region_move(struct region *region, unsigned from, uint64_t *from_expected, unsigned to,
                               uint64_t *to_expected, uint64_t pages) {
    struct region_usage *usage = region->usage;
    struct region_sum *sum = &usage->sums[REGION_GPU];
    struct region_held *sender = &usage->slots[from].held[REGION_GPU];
    struct region_held *receiver = &usage->slots[to].held[REGION_GPU];
    if (!region_mapped_intact(region) || atomic_load(&sender->committed) != *from_expected ||
        atomic_load(&receiver->committed) != *to_expected)
        return broken(region);
    uint64_t seq = next_seq(seq_of(*from_expected)), receiver_seq = next_seq(seq_of(*to_expected));
    if (pages > MOVE_PAGES_MAX || pages > committed_pages(*from_expected))
        return REGION_FULL;
    atomic_store(&receiver->op, op_word(receiver_seq, (int64_t)pages));
    STEP("move: receiver announced");
    atomic_store(&sender->op, move_word(seq, to, pages));
    STEP("move: announced");
    for (;;) {
        uint64_t before = settled_total(usage, REGION_GPU);
        if (total_pages(before) < committed_pages(*from_expected))
            return broken(region);
        uint64_t after = total_word(seq, from, total_pages(before));
        STEP("move: before take");
        if (atomic_compare_exchange_strong(&sum->total, &before, after)) {
            STEP("move: taken");
            help(usage, REGION_GPU, after);
            STEP("move: committed");
            *from_expected = committed_word(seq, committed_pages(*from_expected) - pages);
            *to_expected = committed_word(receiver_seq, committed_pages(*to_expected) + pages);
            return if_intact(region, REGION_OK);
        }
    }
}

enum region_result region_take(struct region *region, enum region_ledger ledger, unsigned slot, uint64_t *expected,
                               uint64_t pages) {
    enum region_result result = REGION_FULL;
    if (pages <= PAGES_MAX) {
        result = region_operate(region, ledger, slot, expected, (int64_t)pages);
        if (result == REGION_FULL) {
            region_reap(region);
            if (!atomic_load(&region->broken))
                result = region_operate(region, ledger, slot, expected, (int64_t)pages);
        }
    }
    return atomic_load_explicit(&region->broken, memory_order_relaxed) ? REGION_BROKEN : result;
}

enum region_result region_reserve(struct region *region, enum region_ledger ledger, uint64_t pages) {
    if (region->slot < 0 || atomic_load_explicit(&region->broken, memory_order_relaxed))
        return REGION_BROKEN;
    return region_take(region, ledger, (unsigned)region->slot, &region->expected[ledger], pages);
}

void region_count_refused(struct region *region) {
    if (region->slot >= 0)
        atomic_fetch_add_explicit(&region->usage->sums[REGION_GPU].refused, 1, memory_order_relaxed);
}

void region_give(struct region *region, enum region_ledger ledger, unsigned slot, uint64_t *expected, uint64_t pages) {
    uint64_t ours = committed_pages(*expected);
    region_operate(region, ledger, slot, expected, -(int64_t)(pages < ours ? pages : ours));
}

void region_release(struct region *region, enum region_ledger ledger, uint64_t pages) {
    if (pages == 0 || region->slot < 0 || atomic_load_explicit(&region->broken, memory_order_relaxed))
        return;
    region_give(region, ledger, (unsigned)region->slot, &region->expected[ledger], pages);
}

void region_count_contexts(struct region *region, int change) {
    if (region->slot >= 0)
        atomic_fetch_add_explicit(&region->usage->slots[region->slot].contexts, change, memory_order_relaxed);
}

/* --- slots of dead processes -------------------------------------------------------------------------------------- */

/* Steps 3 to 5 of reaping: gives back the pages of `committed`. The slot's owner is known to be dead. */
static void take_back(struct region_usage *usage, enum region_ledger ledger, unsigned index, uint64_t committed) {
    struct region_held *held = &usage->slots[index].held[ledger];
    uint64_t pages = committed_pages(committed);
    uint64_t seq = next_seq(seq_of(committed));
    uint64_t wanted = op_word(seq, -(int64_t)pages);

    settled_total(usage, ledger);
    STEP("reap: settled");
    uint64_t op = atomic_load(&held->op);
    if (atomic_load(&held->committed) != committed)
        return;
    STEP("reap: before announce");
    if (op != wanted && !atomic_compare_exchange_strong(&held->op, &op, wanted))
        return;
    STEP("reap: announced");
    for (;;) {
        uint64_t before = settled_total(usage, ledger);
        if (atomic_load(&held->committed) != committed)
            return;
        uint64_t after = total_word(seq, index, add_pages(total_pages(before), -(int64_t)pages));
        STEP("reap: before take");
        if (atomic_compare_exchange_strong(&usage->sums[ledger].total, &before, after)) {
            STEP("reap: taken");
            help(usage, ledger, after);
            return;
        }
    }
}

static bool is_exported(const struct region_slot *slot, struct tag_search *search) {
    uint64_t file = atomic_load(&slot->target);
    return life_kind(atomic_load(&slot->life)) == REGION_KIND_SHARE && file != 0 &&
           tag_is_alive(search, file, atomic_load(&slot->tag));
}

bool region_slot_owned(struct region *region, int fd, unsigned index, struct tag_search *search) {
    short type = F_WRLCK;
    return region_lock_slot(fd, F_OFD_GETLK, index, &type) != 0 || type != F_UNLCK ||
           is_exported(&region->usage->slots[index], search);
}

bool region_reap_slot(struct region *region, int fd, unsigned index, struct tag_search *search) {
    struct region_usage *usage = region->usage;
    struct region_slot *slot = &usage->slots[index];
    for (int attempt = 0; attempt < REAP_ATTEMPTS; attempt++) {
        uint64_t committed[REGION_LEDGER_COUNT], pages = 0;
        for (unsigned i = 0; i < REGION_LEDGER_COUNT; i++) {
            settled_total(usage, (enum region_ledger)i);
            committed[i] = atomic_load(&slot->held[i].committed);
            pages += committed_pages(committed[i]);
        }
        if (pages == 0)
            return true;
        uint64_t life = atomic_load(&slot->life);
        if (life_kind(life) != REGION_KIND_ENDED) {
            STEP("reap: before question");
            if (region_slot_owned(region, fd, index, search))
                return false;
            STEP("reap: dead");
            if (life_kind(life) == REGION_KIND_SHARE &&
                !atomic_compare_exchange_strong(&slot->life, &life, next_life(life, REGION_KIND_ENDED)))
                continue;
            STEP("reap: ended");
        }
        for (unsigned i = 0; i < REGION_LEDGER_COUNT; i++)
            if (committed_pages(committed[i]) != 0)
                take_back(usage, (enum region_ledger)i, index, committed[i]);
    }
    return false;
}

/* While `total` stays the same, no operation is taken, so the sums must agree. A difference is reported only if it is
 * found several times, since another process may still be committing. */
bool region_sums_agree(struct region_usage *usage, enum region_ledger ledger) {
    for (int attempt = 0; attempt < CHECK_ATTEMPTS; attempt++) {
        uint64_t total = settled_total(usage, ledger), end = atomic_load(&usage->high_water), pages = 0;
        for (unsigned i = 0; i < end && i < REGION_SLOT_COUNT; i++)
            pages += committed_pages(atomic_load(&usage->slots[i].held[ledger].committed));
        if (pages == total_pages(total) || atomic_load(&usage->sums[ledger].total) != total)
            return true;
    }
    return false;
}

static bool is_empty(const struct region_slot *slot) {
    return committed_pages(atomic_load(&slot->held[REGION_GPU].committed)) == 0 &&
           committed_pages(atomic_load(&slot->held[REGION_SPILL].committed)) == 0;
}

void region_reap(struct region *region) {
    struct region_usage *usage = region->usage;
    if (region->slot < 0)
        return;
    int error = errno;
    /* A descriptor for this query alone: the program may close descriptors that it does not know, and reuse their
     * numbers. */
    bool gone;
    for (unsigned i = 0; i < REGION_LEDGER_COUNT; i++)
        settled_total(usage, (enum region_ledger)i);
    int fd = region_open_query(region, &gone);
    uint64_t end = atomic_load(&usage->high_water);
    struct tag_search search = {.witness = &region->witness};
    for (unsigned i = 0; i < end && i < REGION_SLOT_COUNT && fd >= 0 && !gone; i++)
        if ((int)i != region->slot && !is_empty(&usage->slots[i]) &&
            (fd != region->descriptor || region_is_usage(region, fd)))
            region_reap_slot(region, fd, i, &search);
    tag_search_end(&search);
    region_close_query(region, fd);
    if (gone || !region_sums_agree(usage, REGION_GPU) || !region_sums_agree(usage, REGION_SPILL) ||
        !region_mapped_intact(region))
        broken(region);
    errno = error;
}

uint64_t region_used_bytes(struct region *region, enum region_ledger ledger) {
    struct region_usage *usage = region->usage;
    if (region->slot < 0)
        return region_read_used_bytes(region, ledger) + region_uncounted_bytes(region, ledger);
    uint64_t pages = total_pages(atomic_load(&usage->sums[ledger].total));
    /* Nobody has died whose pages are all this process's own, which is what most processes find. */
    if (pages != committed_pages(atomic_load(&usage->slots[region->slot].held[ledger].committed))) {
        region_reap(region);
        pages = total_pages(atomic_load(&usage->sums[ledger].total));
    }
    if (atomic_load(&region->broken) || !region_mapped_intact(region))
        pages = PAGES_MAX;
    return (pages << REGION_PAGE_SHIFT) + region_uncounted_bytes(region, ledger);
}

/* --- finding a free slot ------------------------------------------------------------------------------------------ */

/* Whether the file has memory for the slot: of a new region it has some for the first slots only. Without this the
 * kernel would end the program (SIGBUS) when it uses the slot and the file system is full. */
static bool has_room(int fd, unsigned index) {
    off_t offset = REGION_SLOTS_OFFSET + (off_t)index * REGION_SLOT_SIZE;
    return syscall(SYS_fallocate, fd, 0, offset, (off_t)REGION_SLOT_SIZE) == 0 || errno != ENOSPC;
}

/* Locks a slot and empties it. False with EAGAIN (or EACCES) if another process has it. */
static bool take(struct region *region, int fd, unsigned index, struct tag_search *search) {
    struct region_usage *usage = region->usage;
    errno = EAGAIN;
    /* This process's own read lock on a share would not refuse it. */
    if ((region->holds != NULL && region->holds[index].held) || !has_room(fd, index))
        return false;
    errno = EAGAIN;
    /* Reaped before it is locked: if this process is stopped in between, no other could reap it. */
    if (!region_reap_slot(region, fd, index, search))
        return false;
    STEP("slot: before lock");
    short type = F_WRLCK;
    if (region_lock_slot(fd, F_OFD_SETLK, index, &type) != 0)
        return false;
    STEP("slot: locked");
    raise_to(&usage->high_water, index + 1);
    /* This process's own lock is not reported, so this finds only what a process left that came and died meanwhile. */
    if (region_reap_slot(region, fd, index, search)) {
        STEP("slot: emptied");
        return true;
    }
    type = F_UNLCK;
    region_lock_slot(fd, F_OFD_SETLK, index, &type);
    errno = EUCLEAN;
    return false;
}

static int take_slot(struct region *region, int fd, unsigned end, struct tag_search *search) {
    struct region_usage *usage = region->usage;
    /* Few slots are used, since every search for dead processes reads all slots that ever were. Each process starts at
     * another slot, so that hundreds of processes that start at once do not all try the same ones. */
    unsigned range = SLOTS_FIRST, refused = 0;
    while (range < end && range < atomic_load(&usage->high_water))
        range *= 2;
    range = range < end ? range : end;
    /* A second round, for slots that became free behind the search. */
    for (unsigned last = 0; last < 2 * end; last += range == end) {
        unsigned index = (unsigned)(atomic_fetch_add(&usage->next_slot, 1) % range);
        if (take(region, fd, index, search))
            return (int)index;
        if (errno != EAGAIN && errno != EACCES)
            return -1;
        if (++refused % REFUSED_MAX == 0)
            range = 2 * range < end ? 2 * range : end;
    }
    errno = EAGAIN;
    return -1;
}

int region_take_slot(struct region *region, int fd, unsigned end) {
    struct tag_search search = {.witness = &region->witness};
    int index = take_slot(region, fd, end, &search), error = errno;
    tag_search_end(&search);
    errno = error;
    return index;
}
