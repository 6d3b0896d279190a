#include "memory/objects.h"

#include "memory/borrowed.h"
#include "memory/physical.h"
#include "state/contexts.h"

static void count(struct objects *objects, enum kind kind) {
    atomic_store_explicit(&objects->counts[kind], objects->tables[kind].count, memory_order_relaxed);
}

/* Under the lock. */
static bool take_out(struct objects *objects, enum kind kind, struct entry *entry, struct entry *copy) {
    if (entry == NULL)
        return false;
    *copy = *entry;
    table_remove(&objects->tables[kind], entry);
    count(objects, kind);
    return true;
}

/* Whether an entry has no charge of its own. */
static bool holds_memory(enum kind kind) {
    return kind == KIND_MAPPING || kind == KIND_ARRAY_MAPPING || kind == KIND_BINDING || kind == KIND_POOL_MEMORY;
}

static void end(struct process *process, enum kind kind, const struct entry *entry) {
    if ((kind == KIND_ARRAY || kind == KIND_MIPMAP) && entry->key != 0)
        physical_whole_ended(process, KIND_ARRAY_MAPPING, entry->key);
    if (kind == KIND_EXTERNAL || kind == KIND_BORROWED)
        borrowed_drop(process, entry->with);
    if (!holds_memory(kind) && (entry->charge.pages != 0 || entry->charge.share != 0))
        charge_end(process, &entry->charge);
}

bool objects_put(struct process *process, enum kind kind, struct entry entry) {
    struct objects *objects = &process->objects;
    struct table *table = &objects->tables[kind];
    struct entry former = {0};
    lock_take(&objects->lock);
    take_out(objects, kind, table_find(table, entry.key), &former);
    bool put = table_put(table, entry) != NULL;
    count(objects, kind);
    lock_give(&objects->lock);
    end(process, kind, &former);
    return put;
}

void objects_put_back(struct process *process, enum kind kind, struct entry entry) {
    struct objects *objects = &process->objects;
    struct table *table = &objects->tables[kind];
    lock_take(&objects->lock);
    bool put = contexts_lives(process, entry.context) && table_find(table, entry.key) == NULL &&
               table_put(table, entry) != NULL;
    count(objects, kind);
    lock_give(&objects->lock);
    if (!put)
        end(process, kind, &entry);
}

bool objects_find(struct process *process, enum kind kind, uint64_t key, struct entry *copy) {
    struct objects *objects = &process->objects;
    if (!process_has(process, kind))
        return false;
    lock_take(&objects->lock);
    const struct entry *known = table_find(&objects->tables[kind], key);
    if (known != NULL)
        *copy = *known;
    lock_give(&objects->lock);
    return known != NULL;
}

bool objects_remove(struct process *process, enum kind kind, uint64_t key, struct entry *copy) {
    struct objects *objects = &process->objects;
    if (!process_has(process, kind))
        return false;
    lock_take(&objects->lock);
    bool found = take_out(objects, kind, table_find(&objects->tables[kind], key), copy);
    lock_give(&objects->lock);
    return found;
}

static bool is_part(const struct entry *entry, uint64_t whole) {
    return entry->with == whole && entry->references == OBJECTS_PART;
}

static bool is_in(const struct entry *entry, uint64_t context) {
    return entry->context == context;
}

/* Under the lock. Continues where the last search ended, since callers remove all such objects one by one: together they
 * search once. */
static struct entry *search(struct objects *objects, enum kind kind, objects_match *matches, uint64_t value) {
    struct table *table = &objects->tables[kind];
    for (size_t n = 0, from = objects->looked_at[kind]; n < table->capacity; n++) {
        struct entry *entry = &table->entries[(from + n) & (table->capacity - 1)];
        objects->looked_at[kind] = (size_t)(entry - table->entries);
        if (entry->key != 0 && matches(entry, value))
            return entry;
    }
    return NULL;
}

bool objects_search(struct process *process, enum kind kind, objects_match *matches, uint64_t value,
                    struct entry *copy) {
    if (!process_has(process, kind))
        return false;
    lock_take(&process->objects.lock);
    const struct entry *known = search(&process->objects, kind, matches, value);
    if (known != NULL)
        *copy = *known;
    lock_give(&process->objects.lock);
    return known != NULL;
}

static bool remove_one(struct process *process, enum kind kind, objects_match *matches, uint64_t value,
                       struct entry *copy) {
    struct objects *objects = &process->objects;
    if (!process_has(process, kind))
        return false;
    lock_take(&objects->lock);
    bool found = take_out(objects, kind, search(objects, kind, matches, value), copy);
    lock_give(&objects->lock);
    return found;
}

bool objects_remove_part(struct process *process, enum kind kind, uint64_t whole, struct entry *copy) {
    return remove_one(process, kind, is_part, whole, copy);
}

void objects_context_ended(struct process *process, uint32_t context) {
    struct entry gone;
    for (enum kind kind = 0; kind < KINDS && context != 0; kind++)
        while (remove_one(process, kind, is_in, context, &gone))
            end(process, kind, &gone);
}

bool objects_refer(struct process *process, enum kind kind, uint64_t key, int change, struct entry *copy) {
    struct objects *objects = &process->objects;
    if (!process_has(process, kind))
        return false;
    lock_take(&objects->lock);
    struct entry *known = table_find(&objects->tables[kind], key);
    if (known != NULL) {
        known->references += (uint32_t)change;
        *copy = *known;
        if (known->references == 0)
            take_out(objects, kind, known, copy);
    }
    lock_give(&objects->lock);
    return known != NULL;
}

bool objects_remove_with(struct process *process, enum kind kind, uint64_t key, uint64_t with, struct entry *copy) {
    struct objects *objects = &process->objects;
    struct entry gone;
    lock_take(&objects->lock);
    struct entry *known = table_find(&objects->tables[kind], key);
    bool found = known != NULL && known->with == with && take_out(objects, kind, known, copy != NULL ? copy : &gone);
    lock_give(&objects->lock);
    return found;
}

static bool same(const struct charge *one, const struct charge *other) {
    return one->pages == other->pages && one->share == other->share && one->region == other->region;
}

bool objects_replace(struct process *process, enum kind kind, const struct entry *before, struct charge charge,
                     uint64_t with) {
    struct objects *objects = &process->objects;
    lock_take(&objects->lock);
    struct entry *known = table_find(&objects->tables[kind], before->key);
    bool changes = known != NULL && known->with == before->with && same(&known->charge, &before->charge);
    if (changes) {
        known->charge = charge;
        known->with = with;
    }
    lock_give(&objects->lock);
    return changes;
}

bool objects_next(struct process *process, enum kind kind, size_t *at, struct entry *copy) {
    struct objects *objects = &process->objects;
    const struct table *table = &objects->tables[kind];
    bool found = false;
    if (!process_has(process, kind))
        return false;
    lock_take(&objects->lock);
    for (; *at < table->capacity && !found; ++*at) {
        found = table->entries[*at].key != 0;
        if (found)
            *copy = table->entries[*at];
    }
    lock_give(&objects->lock);
    return found;
}
