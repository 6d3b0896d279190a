#include <string.h>
#include <sys/mman.h>

#include "driver.h"

/* Under the table's mutex. The whole table is address space only, until elements are used. */
static bool make_table(struct handle_table *table) {
    void *base;

    if (table->base != NULL)
        return true;
    base = mmap(NULL, (size_t)table->capacity << table->shift, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return false;
    table->base = base;
    return true;
}

static struct handle *element_at(struct handle_table *table, uint32_t index) {
    return (struct handle *)(table->base + ((size_t)index << table->shift));
}

void *handle_new(struct handle_table *table) {
    struct handle *element = NULL;
    uint32_t used;

    pthread_mutex_lock(&table->mutex);
    if (make_table(table)) {
        used = atomic_load(&table->used);
        if (table->free_head != 0) {
            element = element_at(table, table->free_head - 1);
            table->free_head = element->next_free;
            memset((char *)element + sizeof(*element), 0, ((size_t)1 << table->shift) - sizeof(*element));
        } else if (used < table->capacity) {
            element = element_at(table, used);
            atomic_store(&table->used, used + 1);
        }
        if (element != NULL)
            atomic_store(&element->live, 1);
    }
    pthread_mutex_unlock(&table->mutex);
    return element;
}

void handle_delete(struct handle_table *table, void *handle) {
    struct handle *element = handle;

    pthread_mutex_lock(&table->mutex);
    if (atomic_exchange(&element->live, 0) != 0) { /* else another thread was faster */
        element->next_free = table->free_head;
        table->free_head = (uint32_t)(((char *)handle - table->base) >> table->shift) + 1;
    }
    pthread_mutex_unlock(&table->mutex);
}

void handle_each(struct handle_table *table, void (*fn)(void *element, void *arg), void *arg) {
    uint32_t used = atomic_load(&table->used);

    for (uint32_t i = 0; i < used; i++) {
        struct handle *element = element_at(table, i);

        if (atomic_load(&element->live) != 0)
            fn(element, arg);
    }
}
