#include "vmm_objects.h"

#include <pthread.h>

enum { MEMORIES = 1024, RESERVATIONS = 128, SPARSES = 64 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct memory memories[MEMORIES];
static struct reservation reservations[RESERVATIONS];
static struct sparse sparses[SPARSES];

static bool context_lives(uint32_t serial) {
    for (unsigned i = 0; i < CONTEXTS; i++)
        if (context_at(i)->handle != NULL && context_at(i)->serial == serial)
            return true;
    return false;
}

/* Under the mutex. */
static bool in_an_array(uint32_t number) {
    for (unsigned i = 0; i < SPARSES; i++)
        for (unsigned tile = 0; tile < SPARSE_TILES && sparses[i].used; tile++)
            if (sparses[i].memory[tile] == number && context_lives(sparses[i].context))
                return true;
    return false;
}

uint32_t memory_new(struct memory memory) {
    uint32_t number = 0;
    pthread_mutex_lock(&mutex);
    for (uint32_t i = 1; i < MEMORIES && number == 0; i++)
        if (!memories[i].used || (memories[i].references == 0 && !in_an_array(i)))
            number = i;
    if (number != 0) {
        memories[number] = memory;
        memories[number].used = true;
        memories[number].references = 1;
    }
    pthread_mutex_unlock(&mutex);
    return number;
}

struct memory *memory_at(uint32_t number) {
    return &memories[number];
}

void memory_hold(uint32_t number) {
    pthread_mutex_lock(&mutex);
    memories[number].references++;
    pthread_mutex_unlock(&mutex);
}

static void drop_locked(uint32_t number, struct change *change);

/* Under the mutex. Whether anything refers to it still. */
static void look_locked(uint32_t number, struct change *change) {
    struct memory *memory = &memories[number];
    if (!memory->used || memory->references > 0 || in_an_array(number))
        return;
    memory->used = false;
    for (unsigned i = 0; i < BINDINGS && memory->multicast; i++)
        if (memory->bindings[i].memory != 0)
            drop_locked(memory->bindings[i].memory, change);
    if (memory->multicast || memory->host)
        return;
    change->least -= (int64_t)memory->size;
    change->most -= memory->shared ? 0 : (int64_t)memory->size;
}

static void drop_locked(uint32_t number, struct change *change) {
    memories[number].references--;
    look_locked(number, change);
}

void memory_drop(uint32_t number, struct change *change) {
    pthread_mutex_lock(&mutex);
    drop_locked(number, change);
    pthread_mutex_unlock(&mutex);
}

/* ---- Addresses ---- */

uint32_t reservation_new(uint64_t address, unsigned blocks) {
    uint32_t number = 0;
    pthread_mutex_lock(&mutex);
    for (uint32_t i = 1; i < RESERVATIONS && number == 0; i++)
        if (!reservations[i].used)
            number = i;
    if (number != 0)
        reservations[number] = (struct reservation){.used = true, .address = address, .blocks = blocks};
    pthread_mutex_unlock(&mutex);
    return number;
}

struct reservation *reservation_at(uint32_t number) {
    return &reservations[number];
}

/* ---- Arrays ---- */

uint32_t sparse_new(uint32_t context, bool deferred) {
    uint32_t number = 0;
    pthread_mutex_lock(&mutex);
    for (uint32_t i = 1; i < SPARSES && number == 0; i++)
        if (!sparses[i].used || !context_lives(sparses[i].context))
            number = i;
    if (number != 0)
        sparses[number] = (struct sparse){.used = true, .deferred = deferred, .context = context};
    pthread_mutex_unlock(&mutex);
    return number;
}

struct sparse *sparse_at(uint32_t number) {
    return &sparses[number];
}

static void set_locked(uint32_t number, unsigned tile, uint32_t memory, struct change *change) {
    uint32_t before = sparses[number].memory[tile];
    sparses[number].memory[tile] = memory;
    if (before != 0)
        look_locked(before, change);
}

void sparse_set(uint32_t number, unsigned tile, uint32_t memory, struct change *change) {
    pthread_mutex_lock(&mutex);
    set_locked(number, tile, memory, change);
    pthread_mutex_unlock(&mutex);
}

void sparse_gone(uint32_t number, struct change *change) {
    pthread_mutex_lock(&mutex);
    for (unsigned tile = 0; tile < SPARSE_TILES; tile++)
        set_locked(number, tile, 0, change);
    sparses[number].used = false;
    pthread_mutex_unlock(&mutex);
}
