#include "storage.h"

#include <stdlib.h>

struct stored {
    CUcontext context;
    void *key, *value;
    storage_destructor *destructor;
    struct stored *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct stored *all;

/* Under the mutex: the link to what is stored there, or to NULL. */
static struct stored **find(CUcontext context, const void *key) {
    struct stored **link = &all;

    while (*link != NULL && ((*link)->context != context || (*link)->key != key))
        link = &(*link)->next;
    return link;
}

static CUresult of_context(CUcontext *context) {
    return *context != NULL ? CUDA_SUCCESS : context_current(context);
}

CUresult storage_put(CUcontext context, void *key, void *value, storage_destructor *destructor) {
    struct stored *stored, **link;

    TRY(of_context(&context));
    stored = malloc(sizeof(*stored));
    REQUIRE(stored != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    *stored = (struct stored){.context = context, .key = key, .value = value, .destructor = destructor};
    pthread_mutex_lock(&mutex);
    link = find(context, key);
    if (*link != NULL) {
        stored->next = (*link)->next;
        free(*link);
    }
    *link = stored;
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

CUresult storage_delete(CUcontext context, void *key) {
    struct stored *found, **link;

    TRY(of_context(&context));
    pthread_mutex_lock(&mutex);
    link = find(context, key);
    found = *link;
    if (found != NULL)
        *link = found->next;
    pthread_mutex_unlock(&mutex);
    REQUIRE(found != NULL, CUDA_ERROR_INVALID_HANDLE);
    free(found);
    return CUDA_SUCCESS;
}

CUresult storage_get(void **value, CUcontext context, void *key) {
    const struct stored *found;

    REQUIRE(value != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(of_context(&context));
    pthread_mutex_lock(&mutex);
    found = *find(context, key);
    if (found != NULL)
        *value = found->value;
    pthread_mutex_unlock(&mutex);
    return found != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

struct stored *storage_context_gone(CUcontext context) {
    struct stored *gone = NULL, *stored;

    pthread_mutex_lock(&mutex);
    for (struct stored **link = &all; (stored = *link) != NULL;) {
        if (stored->context != context) {
            link = &stored->next;
            continue;
        }
        *link = stored->next;
        stored->next = gone;
        gone = stored;
    }
    pthread_mutex_unlock(&mutex);
    return gone;
}

void storage_drop(struct stored *values) {
    for (struct stored *next; values != NULL; values = next) {
        next = values->next;
        if (values->destructor != NULL)
            values->destructor(values->context, values->key, values->value);
        free(values);
    }
}
