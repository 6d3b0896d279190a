#include "state/table.h"

#include "system/mapped.h"

/* Fits into one page. */
#define FIRST_CAPACITY 128

/* The index at which the search for a key begins. */
static size_t home(const struct table *table, uint64_t key) {
    return (size_t)table_hash(key, 32) & (table->capacity - 1);
}

static size_t after(const struct table *table, size_t index) {
    return (index + 1) & (table->capacity - 1);
}

static struct entry *place(struct table *table, struct entry entry) {
    size_t index = home(table, entry.key);
    while (table->entries[index].key != 0)
        index = after(table, index);
    table->entries[index] = entry;
    return &table->entries[index];
}

static bool grow(struct table *table) {
    struct table larger = {.capacity = table->capacity ? 2 * table->capacity : FIRST_CAPACITY};
    larger.entries = mapped_new(larger.capacity * sizeof(struct entry));
    if (larger.entries == NULL)
        return false;
    for (size_t i = 0; i < table->capacity; i++)
        if (table->entries[i].key != 0)
            place(&larger, table->entries[i]);
    mapped_free(table->entries, table->capacity * sizeof(struct entry));
    table->entries = larger.entries;
    table->capacity = larger.capacity;
    return true;
}

struct entry *table_find(struct table *table, uint64_t key) {
    if (table->count == 0 || key == 0)
        return NULL;
    for (size_t index = home(table, key); table->entries[index].key != 0; index = after(table, index))
        if (table->entries[index].key == key)
            return &table->entries[index];
    return NULL;
}

struct entry *table_put(struct table *table, struct entry entry) {
    /* At most half full, so that probing stays short. */
    if (2 * (table->count + 1) > table->capacity && !grow(table))
        return NULL;
    table->count++;
    return place(table, entry);
}

void table_remove(struct table *table, struct entry *entry) {
    /* Close the gap: move back each entry that was displaced across it, until a free entry. */
    size_t gap = (size_t)(entry - table->entries);
    for (size_t index = after(table, gap); table->entries[index].key != 0; index = after(table, index)) {
        size_t wanted = home(table, table->entries[index].key);
        size_t from_wanted = (index - wanted) & (table->capacity - 1);
        size_t from_gap = (index - gap) & (table->capacity - 1);
        if (from_wanted >= from_gap) {
            table->entries[gap] = table->entries[index];
            gap = index;
        }
    }
    memset(&table->entries[gap], 0, sizeof table->entries[gap]);
    table->count--;
}
