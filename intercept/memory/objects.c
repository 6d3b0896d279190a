#include "memory/objects.h"

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

static void end(struct process *process, enum kind kind, const struct entry *entry) {
    if ((kind == KIND_ARRAY || kind == KIND_MIPMAP) && entry->key != 0)
        physical_whole_ended(process, KIND_ARRAY_MAPPING, entry->key);
    if (entry->charge.pages != 0 || entry->charge.share != 0)
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
    lock_take(&objects->lock);
    bool put = contexts_lives(process, entry.context) && table_put(&objects->tables[kind], entry) != NULL;
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

bool objects_remove_one_of(struct process *process, enum kind kind, uint32_t references, struct entry *copy) {
    struct objects *objects = &process->objects;
    struct table *table = &objects->tables[kind];
    bool found = false;
    if (!process_has(process, kind))
        return false;
    lock_take(&objects->lock);
    /* Continues where the last search ended, since callers remove all such objects one by one: together they search
     * once. */
    for (size_t n = 0, from = objects->looked_at[kind]; n < table->capacity && !found; n++) {
        size_t i = (from + n) & (table->capacity - 1);
        objects->looked_at[kind] = i;
        if (table->entries[i].key != 0 && table->entries[i].references == references)
            found = take_out(objects, kind, &table->entries[i], copy);
    }
    lock_give(&objects->lock);
    return found;
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

bool objects_remove_with(struct process *process, enum kind kind, uint64_t key, uint64_t with) {
    struct objects *objects = &process->objects;
    struct entry gone;
    bool found = false;
    lock_take(&objects->lock);
    struct entry *known = table_find(&objects->tables[kind], key);
    if (known != NULL && known->with == with)
        found = take_out(objects, kind, known, &gone);
    lock_give(&objects->lock);
    return found;
}

size_t objects_remove_all_with(struct process *process, enum kind kind, uint64_t with) {
    struct objects *objects = &process->objects;
    struct table *table = &objects->tables[kind];
    struct entry gone;
    size_t count = 0, before;
    lock_take(&objects->lock);
    do {
        before = count;
        for (size_t i = 0; i < table->capacity;) {
            if (table->entries[i].key != 0 && table->entries[i].with == with)
                count += take_out(objects, kind, &table->entries[i], &gone); /* may move another entry to this index */
            else
                i++;
        }
    } while (count != before); /* an entry at the end may have moved to the beginning */
    lock_give(&objects->lock);
    return count;
}

bool objects_update(struct process *process, enum kind kind, uint64_t key, struct charge charge, uint64_t with) {
    struct objects *objects = &process->objects;
    lock_take(&objects->lock);
    struct entry *known = table_find(&objects->tables[kind], key);
    if (known != NULL) {
        known->charge = charge;
        known->with = with;
    }
    lock_give(&objects->lock);
    return known != NULL;
}

static bool same(const struct charge *one, const struct charge *other) {
    return one->pages == other->pages && one->share == other->share && one->region == other->region;
}

bool objects_recharge(struct process *process, enum kind kind, uint64_t key, const struct charge *before,
                      struct charge charge) {
    struct objects *objects = &process->objects;
    lock_take(&objects->lock);
    struct entry *known = table_find(&objects->tables[kind], key);
    bool changes = known != NULL && same(&known->charge, before);
    if (changes)
        known->charge = charge;
    lock_give(&objects->lock);
    return changes;
}

size_t objects_copy(struct process *process, enum kind kind, size_t at, struct entry *entries, size_t room) {
    struct objects *objects = &process->objects;
    const struct table *table = &objects->tables[kind];
    size_t count = 0;
    if (!process_has(process, kind))
        return 0;
    lock_take(&objects->lock);
    for (size_t i = 0; i < table->capacity && count < room; i++) {
        if (table->entries[i].key == 0)
            continue;
        if (at > 0)
            at--;
        else
            entries[count++] = table->entries[i];
    }
    lock_give(&objects->lock);
    return count;
}

static bool remove_one_in(struct objects *objects, enum kind kind, uint32_t context, struct entry *copy) {
    struct table *table = &objects->tables[kind];
    bool found = false;
    lock_take(&objects->lock);
    for (size_t i = 0; i < table->capacity && !found; i++)
        if (table->entries[i].key != 0 && table->entries[i].context == context)
            found = take_out(objects, kind, &table->entries[i], copy);
    lock_give(&objects->lock);
    return found;
}

void objects_context_ended(struct process *process, uint32_t context) {
    struct entry gone;
    for (enum kind kind = 0; kind < KINDS && context != 0; kind++)
        while (process_has(process, kind) && remove_one_in(&process->objects, kind, context, &gone))
            end(process, kind, &gone);
}
