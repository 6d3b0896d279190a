#include "objects.h"

#include <pthread.h>
#include <string.h>

#include "family.h"
#include "random.h"
#include "worker.h"

enum { OBJECTS = 4096 };

static pthread_mutex_t mutex;
static struct object objects[OBJECTS];
static unsigned object_count;
static struct context contexts[CONTEXTS];
static uint32_t last_serial;

void objects_reset(void) {
    pthread_mutex_init(&mutex, NULL);
    object_count = 0;
    memset(contexts, 0, sizeof contexts);
}

static void change_slack(const struct object *object, int sign) {
    for (int gpu = 0; object->slack != 0 && gpu < GPUS; gpu++)
        if (gpu == object->gpu || (object->also >> gpu & 1))
            atomic_fetch_add(&my_seat->slack[gpu], sign * (int64_t)object->slack);
}

bool object_put(const struct object *object) {
    pthread_mutex_lock(&mutex);
    bool fits = object_count < OBJECTS;
    if (fits) {
        objects[object_count++] = *object;
        change_slack(object, 1);
    }
    pthread_mutex_unlock(&mutex);
    return fits;
}

/* Under the mutex. */
static void remove_at(unsigned i) {
    change_slack(&objects[i], -1);
    objects[i] = objects[--object_count];
}

static bool find(uint64_t *random, enum kind kind, int device, uint32_t context, bool take, struct object *object) {
    bool found = false;
    pthread_mutex_lock(&mutex);
    unsigned start = (unsigned)random_below(random, object_count);
    for (unsigned n = 0; n < object_count && !found; n++) {
        unsigned i = (start + n) % object_count;
        if (objects[i].kind == kind && (device < 0 || objects[i].device == device) &&
            (context == 0 || objects[i].context == context)) {
            *object = objects[i];
            if (take)
                remove_at(i);
            found = true;
        }
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

bool object_take(uint64_t *random, enum kind kind, int device, struct object *object) {
    return find(random, kind, device, 0, true, object);
}

bool object_take_in(uint64_t *random, enum kind kind, uint32_t context, struct object *object) {
    return find(random, kind, -1, context, true, object);
}

bool object_look(uint64_t *random, enum kind kind, struct object *object) {
    return find(random, kind, -1, 0, false, object);
}

void objects_forget(enum kind kind, int device, uint8_t way) {
    pthread_mutex_lock(&mutex);
    for (unsigned i = 0; i < object_count;) {
        if (objects[i].kind == kind && objects[i].device == device && objects[i].way == way)
            remove_at(i);
        else
            i++;
    }
    pthread_mutex_unlock(&mutex);
}

unsigned objects_count(enum kind kind) {
    unsigned count = 0;
    pthread_mutex_lock(&mutex);
    for (unsigned i = 0; i < object_count; i++)
        count += objects[i].kind == kind;
    pthread_mutex_unlock(&mutex);
    return count;
}

struct context *context_add(CUcontext handle, int device, int gpu, bool primary) {
    struct context *context = NULL;
    pthread_mutex_lock(&mutex);
    for (unsigned i = 0; i < CONTEXTS && context == NULL; i++)
        if (contexts[i].handle == NULL)
            context = &contexts[i];
    if (context != NULL)
        *context = (struct context){
            .handle = handle, .device = device, .gpu = gpu, .serial = ++last_serial, .retained = 1, .primary = primary};
    if (context != NULL)
        atomic_fetch_add(&my_seat->contexts[gpu], 1);
    pthread_mutex_unlock(&mutex);
    return context;
}

struct context *context_find(CUcontext handle) {
    for (unsigned i = 0; handle != NULL && i < CONTEXTS; i++)
        if (contexts[i].handle == handle)
            return &contexts[i];
    return NULL;
}

struct context *context_primary(int device) {
    for (unsigned i = 0; i < CONTEXTS; i++)
        if (contexts[i].handle != NULL && contexts[i].primary && contexts[i].device == device)
            return &contexts[i];
    return NULL;
}

struct context *context_random(uint64_t *random) {
    unsigned start = (unsigned)random_below(random, CONTEXTS);
    for (unsigned n = 0; n < CONTEXTS; n++)
        if (contexts[(start + n) % CONTEXTS].handle != NULL)
            return &contexts[(start + n) % CONTEXTS];
    return NULL;
}

void context_emptied(struct context *context) {
    pthread_mutex_lock(&mutex);
    for (unsigned i = 0; i < object_count;) {
        if (objects[i].context == context->serial)
            remove_at(i);
        else
            i++;
    }
    pthread_mutex_unlock(&mutex);
}

void context_forget(struct context *context) {
    context_emptied(context);
    context->handle = NULL;
    atomic_fetch_sub(&my_seat->contexts[context->gpu], 1);
}

unsigned contexts_count(void) {
    unsigned count = 0;
    for (unsigned i = 0; i < CONTEXTS; i++)
        count += contexts[i].handle != NULL;
    return count;
}

struct context *context_at(unsigned index) {
    return &contexts[index];
}
