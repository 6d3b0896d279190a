/* Taking and giving back GPU memory. How it works, and why it needs no lock: state_layout.h. */
#include <errno.h>
#include <fcntl.h>

#include "state_local.h"

#define MAX_SEQUENCE 0x7ffffff
#define REAP_INTERVAL_NS 1000000

static unsigned next_sequence(uint64_t sequence) {
    return sequence == MAX_SEQUENCE ? 1 : (unsigned)sequence + 1;
}

/* The change that a word of a GPU's total names, as it was announced. */
struct change {
    unsigned slot;
    uint64_t sequence, op, from, from_sequence, charge, committed;
    bool moves;
};

static word *part_of(unsigned slot, int index, unsigned part) {
    return &sim_local->state->slots[slot].parts[index / ENTRIES][part];
}

/* False if the change is complete. */
static bool read_change(int index, uint64_t w, struct change *c) {
    struct state_slot *slot = &sim_local->state->slots[SUM_SLOT(w)];

    c->slot = (unsigned)SUM_SLOT(w);
    c->sequence = SUM_SEQUENCE(w);
    c->op = atomic_load(&slot->gpus[index].op);
    c->from = atomic_load(&slot->gpus[index].from);
    c->from_sequence = atomic_load(&slot->gpus[index].from_sequence);
    c->charge = atomic_load(&slot->gpus[index].charge);
    /* Last: as long as it lacks the change, the words above are the change's. */
    c->committed = atomic_load(&slot->gpus[index].committed);
    if (CHARGE_SEQUENCE(c->charge) != c->sequence)
        c->charge = 0;
    c->moves = (c->charge & CHARGE_MOVES) != 0;
    return next_sequence(COMMITTED_SEQUENCE(c->committed)) == c->sequence && OP_SEQUENCE(c->op) == c->sequence;
}

/* Does one step of what the change means for its cgroup; false if there is none left. */
static bool help_charge(int index, uint64_t w, const struct change *c) {
    struct state *st = sim_local->state;
    unsigned limit = CHARGE_LIMIT(c->charge), source_sequence = next_sequence(c->from_sequence);
    int64_t delta = OP_DELTA(c->op);
    word *used, *peak, *part, *source;
    uint64_t u, k, p, s;

    if (limit == 0)
        return false;
    used = &st->limits[limit - 1].gpus[index / ENTRIES].used;
    peak = &st->limits[limit - 1].gpus[index / ENTRIES].peak;
    part = part_of(c->slot, index, CHARGE_PART(c->charge));
    source = part_of(c->moves ? FROM_SLOT(c->from) : c->slot, index, CHARGE_SOURCE_PART(c->charge));
    k = atomic_load(peak);
    u = atomic_load(used);
    p = atomic_load(part);
    s = atomic_load(source);
    if (atomic_load(&st->gpus[index].total) != w)
        return true;
    if (!c->moves && (SUM_SLOT(u) != c->slot || SUM_SEQUENCE(u) != c->sequence))
        atomic_compare_exchange_strong(used, &u, SUM(c->slot, c->sequence, (uint64_t)((int64_t)SUM_UNITS(u) + delta)));
    else if (!c->moves && k < SUM_UNITS(u))
        atomic_compare_exchange_strong(peak, &k, SUM_UNITS(u));
    else if (SUM_SEQUENCE(p) != c->sequence)
        atomic_compare_exchange_strong(part, &p, SUM(limit, c->sequence, (uint64_t)((int64_t)SUM_UNITS(p) + delta)));
    else if (c->moves && SUM_SEQUENCE(s) != source_sequence)
        atomic_compare_exchange_strong(source, &s,
                                       SUM(limit, source_sequence, (uint64_t)((int64_t)SUM_UNITS(s) - delta)));
    else
        return false;
    return true;
}

void sums_help(int index, uint64_t w) {
    struct state *st = sim_local->state;
    word *total = &st->gpus[index].total;
    struct change change;

    if (SUM_SEQUENCE(w) == 0)
        return;
    while (read_change(index, w, &change)) {
        unsigned slot = change.slot, group = (unsigned)OP_GROUP(change.op);
        uint64_t sequence = change.sequence, s, p, c;
        word *source = change.moves ? &st->slots[FROM_SLOT(change.from)].gpus[index].committed : NULL;
        word *sum = &st->groups[group].gpus[index].sum, *peak = &st->groups[group].gpus[index].peak;
        int64_t delta = change.moves ? 0 : OP_DELTA(change.op);

        if (change.charge != 0 && help_charge(index, w, &change))
            continue;
        p = atomic_load(peak);
        s = atomic_load(sum);
        c = change.moves ? atomic_load(source) : 0;
        if (atomic_load(total) != w)
            return;
        if (SUM_SLOT(s) != slot || SUM_SEQUENCE(s) != sequence) {
            atomic_compare_exchange_strong(sum, &s,
                                           SUM(slot, sequence, (uint64_t)((int64_t)SUM_UNITS(s) + delta) & 0x1ffffff));
            continue;
        }
        if (p < SUM_UNITS(s)) {
            atomic_compare_exchange_strong(peak, &p, SUM_UNITS(s));
            continue;
        }
        if (change.moves && COMMITTED_SEQUENCE(c) == change.from_sequence) {
            atomic_compare_exchange_strong(source, &c,
                                           COMMITTED(next_sequence(change.from_sequence),
                                                     (uint64_t)((int64_t)COMMITTED_UNITS(c) - OP_DELTA(change.op))));
            continue;
        }
        atomic_compare_exchange_strong(
            &st->slots[slot].gpus[index].committed, &change.committed,
            COMMITTED(sequence, (uint64_t)((int64_t)COMMITTED_UNITS(change.committed) + OP_DELTA(change.op))));
        return;
    }
}

static bool lock_held_by_other(off_t byte) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};

    /* Where the question itself fails, the answer that loses nobody's memory is the right one. */
    return fcntl(sim_local->low, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

bool slot_alive(unsigned slot) {
    /* What this process holds itself, its own description does not show. */
    if ((sim_local->joined && slot == sim_local->slot) || atomic_load(&sim_local->holds[slot]) != 0)
        return true;
    return lock_held_by_other(LOCK_BYTE(slot, 0)) && lock_held_by_other(LOCK_BYTE(slot, 1));
}

/* How the next piece of a slot's memory goes back: all that is charged to one cgroup, or else all that there is. */
static void next_piece(unsigned slot, int index, uint64_t committed, uint64_t *charge, uint64_t *op) {
    unsigned sequence = next_sequence(COMMITTED_SEQUENCE(committed));
    uint64_t group = atomic_load(&sim_local->state->slots[slot].group);

    *charge = CHARGE(sequence, 0, 0);
    *op = OP(sequence, group, -(int64_t)COMMITTED_UNITS(committed));
    for (unsigned i = 0; index % ENTRIES == 0 && i < PARTS; i++) {
        uint64_t part = atomic_load(part_of(slot, index, i));

        if (SUM_UNITS(part) == 0)
            continue;
        *charge = CHARGE(sequence, PART_LIMIT(part), i);
        *op = OP(sequence, group, -(int64_t)SUM_UNITS(part));
        return;
    }
}

/*
 * Gives back what slot holds of the GPU. `mine`: we hold the slot's locks. Otherwise the slot is reaped only if it is
 * dead after its words were read and these words have not changed since. Returns false if it turned out to be alive.
 */
bool sums_empty_slot(unsigned slot, int index, bool mine) {
    struct state *st = sim_local->state;
    word *total = &st->gpus[index].total, *ops = &st->slots[slot].gpus[index].op;
    word *charges = &st->slots[slot].gpus[index].charge;

    for (;;) {
        uint64_t w = atomic_load(total);
        uint64_t committed, op, charge, change, charged, sum;

        sums_help(index, w);
        committed = atomic_load(&st->slots[slot].gpus[index].committed);
        if (COMMITTED_UNITS(committed) == 0)
            return true;
        op = atomic_load(ops);
        charge = atomic_load(charges);
        next_piece(slot, index, committed, &charged, &change);
        /* Or else these words may be those of a later change. */
        if (atomic_load(&st->slots[slot].gpus[index].committed) != committed)
            continue;
        if (!mine && slot_alive(slot))
            return false;
        if ((charge != charged && !atomic_compare_exchange_strong(charges, &charge, charged)) ||
            (op != change && !atomic_compare_exchange_strong(ops, &op, change)))
            continue;
        sum = SUM(slot, OP_SEQUENCE(change), (uint64_t)((int64_t)SUM_UNITS(w) + OP_DELTA(change)));
        if (atomic_load(&st->slots[slot].gpus[index].committed) == committed &&
            atomic_compare_exchange_strong(total, &w, sum))
            sums_help(index, sum);
    }
}

/* What a slot leaves behind in the statistics of its group; then the slot is nobody's. */
void sums_retire_slot(unsigned slot, uint64_t owner) {
    struct state *st = sim_local->state;
    uint64_t group = atomic_load(&st->slots[slot].group);

    for (int i = 0; i < entry_count(); i++) {
        uint64_t launches = atomic_exchange(&st->slots[slot].gpus[i].launches, 0);

        if (launches != 0)
            atomic_fetch_add(&st->groups[group].gpus[i].launches_of_dead, launches);
        atomic_store(&st->slots[slot].gpus[i].context_bytes, 0);
        atomic_store(&st->slots[slot].gpus[i].allocations, 0);
        atomic_store(&st->slots[slot].gpus[i].busy_ns, 0);
        atomic_store(&st->slots[slot].gpus[i].peak, 0);
    }
    atomic_compare_exchange_strong(&st->slots[slot].owner, &owner, owner & ~(uint64_t)UINT32_MAX);
}

/* Whether nobody holds the object, and nobody ever will again. */
static bool object_is_doomed(unsigned slot) {
    word *attach = &sim_local->state->slots[slot].attach;
    uint64_t before = atomic_load(attach);

    do {
        if (slot_alive(slot))
            return false;
        if ((before & ATTACH_DYING) != 0)
            return true;
    } while (!atomic_compare_exchange_weak(attach, &before, before | ATTACH_DYING));
    return true;
}

void sums_reap_slot(unsigned slot) {
    struct state_slot *s = &sim_local->state->slots[slot];
    uint64_t owner = atomic_load(&s->owner);

    if ((uint32_t)owner == 0 || (atomic_load(&s->kind) != 0 ? !object_is_doomed(slot) : slot_alive(slot)))
        return;
    for (int i = 0; i < entry_count(); i++) {
        if (!sums_empty_slot(slot, i, false))
            return;
    }
    if (!slot_alive(slot))
        sums_retire_slot(slot, owner);
}

void sim_reap(void) {
    uint64_t used = atomic_load(&sim_local->state->slots_used);

    for (unsigned slot = 0; slot < used; slot++)
        sums_reap_slot(slot);
}

/* Reaps the dead of one group that hold memory of the GPU. */
static void reap_group(unsigned group, int index) {
    struct state *st = sim_local->state;
    uint64_t used = atomic_load(&st->slots_used);

    for (unsigned slot = 0; slot < used; slot++) {
        if (slot != sim_local->slot && atomic_load(&st->slots[slot].group) == group &&
            COMMITTED_UNITS(atomic_load(&st->slots[slot].gpus[index].committed)) != 0)
            sums_reap_slot(slot);
    }
}

/*
 * The group's peak must not count somebody who is dead but not yet reaped: a limit that was kept would seem broken. So
 * the dead are reaped before a change that raises the peak. False: the sums changed meanwhile, look again.
 */
static bool peak_may_rise(int index, uint64_t w, int64_t delta) {
    struct state *st = sim_local->state;
    uint64_t sum = atomic_load(&st->groups[sim_local->group].gpus[index].sum);

    if (SUM_UNITS(sum) + (uint64_t)delta <= atomic_load(&st->groups[sim_local->group].gpus[index].peak))
        return true;
    reap_group(sim_local->group, index);
    return atomic_load(&st->gpus[index].total) == w;
}

int sums_part(unsigned slot, int index, unsigned limit, bool make) {
    int empty = -1;

    for (unsigned i = 0; i < PARTS; i++) {
        uint64_t part = atomic_load(part_of(slot, index, i));

        if (SUM_UNITS(part) == 0)
            empty = (int)i;
        else if (PART_LIMIT(part) == limit)
            return (int)i;
    }
    return make ? empty : -1;
}

int64_t sums_charged(unsigned slot, int index, int64_t most, unsigned *limit) {
    for (unsigned i = 0; index % ENTRIES == 0 && i < PARTS; i++) {
        uint64_t part = atomic_load(part_of(slot, index, i));

        if (SUM_UNITS(part) == 0)
            continue;
        *limit = PART_LIMIT(part);
        return (int64_t)SUM_UNITS(part) < most ? (int64_t)SUM_UNITS(part) : most;
    }
    *limit = 0;
    return most;
}

/* Announces a change of a slot of this process's, which nobody else announces any of. */
static void announce(unsigned slot, int index, uint64_t op, uint64_t charge) {
    struct state_slot *s = &sim_local->state->slots[slot];
    uint64_t old = atomic_load_explicit(&s->gpus[index].charge, memory_order_relaxed);

    if (charge != 0 || CHARGE_SEQUENCE(old) == OP_SEQUENCE(op))
        atomic_store(&s->gpus[index].charge, charge);
    atomic_store(&s->gpus[index].op, op);
}

/* One change of the sums by this process. The caller holds the GPU's op_mutex. */
static int change_sums(unsigned slot, int index, int64_t delta, unsigned limit) {
    struct state *st = sim_local->state;
    word *total = &st->gpus[index].total;
    uint64_t capacity = entry_bytes(index) >> UNIT_SHIFT;
    uint64_t committed = atomic_load(&st->slots[slot].gpus[index].committed);
    unsigned sequence = next_sequence(COMMITTED_SEQUENCE(committed));
    int looks = 0, part = limit != 0 ? sums_part(slot, index, limit, delta > 0) : 0;
    bool reaped = false;

    if (part < 0)
        return -ENOMEM;
    announce(slot, index, OP(sequence, sim_local->group, delta),
             limit != 0 ? CHARGE(sequence, limit, (unsigned)part) : 0);
    for (;;) {
        uint64_t w = atomic_load(total), sum;

        sums_help(index, w);
        if (delta > 0 &&
            (SUM_UNITS(w) + (uint64_t)delta > capacity || (limit != 0 && limits_exceeded(limit, index, delta)))) {
            if (reaped)
                return -ENOMEM;
            reaped = true;
            sim_reap();
            continue;
        }
        /* Where many processes raise the peak at once, the sums never stand still; the bound keeps us moving. */
        if (delta > 0 && looks < 64 && !peak_may_rise(index, w, delta)) {
            looks++;
            continue;
        }
        sum = SUM(slot, sequence, (uint64_t)((int64_t)SUM_UNITS(w) + delta));
        if (atomic_compare_exchange_strong(total, &w, sum)) {
            sums_help(index, sum);
            return 0;
        }
    }
}

/* The caller holds the GPU's op_mutex, so this process's own sum stands still. */
static int move_sums(unsigned slot, int index, int64_t units, unsigned limit) {
    struct state *st = sim_local->state;
    word *total = &st->gpus[index].total;
    uint64_t source = atomic_load(&st->slots[sim_local->slot].gpus[index].committed);
    uint64_t committed = atomic_load(&st->slots[slot].gpus[index].committed);
    unsigned sequence = next_sequence(COMMITTED_SEQUENCE(committed));
    int part = limit != 0 ? sums_part(slot, index, limit, true) : 0;
    int from = limit != 0 ? sums_part(sim_local->slot, index, limit, false) : 0;

    if (COMMITTED_UNITS(source) < (uint64_t)units || part < 0 || from < 0)
        return -EINVAL;
    atomic_store(&st->slots[slot].gpus[index].from_sequence, COMMITTED_SEQUENCE(source));
    atomic_store(&st->slots[slot].gpus[index].from, FROM(sequence, sim_local->slot));
    announce(slot, index, OP(sequence, sim_local->group, units),
             CHARGE(sequence, limit, (unsigned)part) | CHARGE_FROM(from) | CHARGE_MOVES);
    for (;;) {
        uint64_t w = atomic_load(total), sum = SUM(slot, sequence, SUM_UNITS(w));

        sums_help(index, w);
        if (atomic_compare_exchange_strong(total, &w, sum)) {
            sums_help(index, sum);
            return 0;
        }
    }
}

int sums_move(unsigned slot, int index, int64_t units, unsigned limit) {
    int ret;

    pthread_mutex_lock(&sim_local->op_mutex[index]);
    ret = move_sums(slot, index, units, limit);
    pthread_mutex_unlock(&sim_local->op_mutex[index]);
    return ret;
}

/* Nobody else writes it. The caller holds the GPU's op_mutex. */
static void raise_own_peak(int index) {
    struct state_slot *slot = &sim_local->state->slots[sim_local->slot];
    uint64_t units = COMMITTED_UNITS(atomic_load(&slot->gpus[index].committed));

    if (units > atomic_load_explicit(&slot->gpus[index].peak, memory_order_relaxed))
        atomic_store_explicit(&slot->gpus[index].peak, units, memory_order_relaxed);
}

int sums_change(unsigned slot, int index, int64_t units, unsigned limit) {
    int ret;

    if (units > 0 && mig_entry_gone(index))
        return -ENODEV;
    pthread_mutex_lock(&sim_local->op_mutex[index]);
    ret = change_sums(slot, index, units, limit);
    /* It may have been destroyed since. */
    if (ret == 0 && units > 0 && !mig_may_take(index)) {
        change_sums(slot, index, -units, limit);
        ret = -ENODEV;
    }
    if (slot == sim_local->slot)
        raise_own_peak(index);
    pthread_mutex_unlock(&sim_local->op_mutex[index]);
    return ret;
}

uint64_t sim_gpu_used(int gpu) {
    uint64_t last, now;
    int index = entry_of(gpu);

    if (index < 0)
        return 0;
    last = atomic_load(&sim_local->state->last_reap_ns);
    now = sim_now_ns();
    if (now - last >= REAP_INTERVAL_NS && atomic_compare_exchange_strong(&sim_local->state->last_reap_ns, &last, now))
        sim_reap();
    return entry_used(index);
}

void sim_count_context(int gpu, int64_t bytes) {
    int index = entry_of(gpu);

    if (index >= 0 && sim_local->joined)
        atomic_fetch_add_explicit(&sim_local->state->slots[sim_local->slot].gpus[index].context_bytes, (uint64_t)bytes,
                                  memory_order_relaxed);
}

void sim_count_allocation(int gpu, int change) {
    int index = entry_of(gpu);

    if (index >= 0 && sim_local->joined)
        atomic_fetch_add_explicit(&sim_local->state->slots[sim_local->slot].gpus[index].allocations,
                                  (uint64_t)(int64_t)change, memory_order_relaxed);
}

void sim_count_launch(int gpu) {
    int index = entry_of(gpu);

    if (index >= 0 && sim_local->joined)
        atomic_fetch_add_explicit(&sim_local->state->slots[sim_local->slot].gpus[index].launches, 1,
                                  memory_order_relaxed);
}
