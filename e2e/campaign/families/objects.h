/* What a worker process has: contexts, and the objects that its operations made in them. */
#ifndef CAMPAIGN_OBJECTS_H
#define CAMPAIGN_OBJECTS_H

#include "cuda_sim.h"

#include <stdbool.h>
#include <stdint.h>

struct call;

/* In the order in which they are given back. */
enum kind {
    KIND_CAPTURE,
    KIND_GRAPH_EXEC,
    KIND_GRAPH,
    KIND_IPC,
    KIND_EXTERNAL,
    KIND_MAPPING,
    KIND_BINDING,
    KIND_MULTICAST,
    KIND_HANDLE,
    KIND_OFFER,
    KIND_WAITING,
    KIND_RESERVATION,
    KIND_SPARSE,
    KIND_LEGACY,
    KIND_ASYNC,
    KIND_IMPORTED_POOL,
    KIND_OFFERED_POOL,
    KIND_POOL,
    KIND_ENDING,
    KIND_MIPMAP,
    KIND_ARRAY,
    KIND_LINEAR,
    KIND_PITCHED,
    KIND_MANAGED,
    KIND_HOST,
    KIND_REGISTERED,
    KIND_LIBRARY,
    KIND_MODULE,
    KIND_LIMIT,
    KIND_EVENT,
    KIND_STREAM,
    KIND_GREEN,
    /* Of a crowd, which gives nothing back in order. */
    KIND_CROWD_LINEAR,
    KIND_CROWD_ASYNC,
    KIND_CROWD_STREAM,
    KIND_CROWD_CONTEXT,
    KIND_CROWD_GRAPH,
    KIND_CROWD_POOL,
    KIND_CROWD_SHARED,
    KIND_CROWD_LEGACY,
    KIND_CROWD_OPENED,
    KIND_CROWD_IMPORTED_POOL,
    KIND_CROWD_MODULE,
    KIND_CROWD_RETAINED,
    KINDS,
};

struct context {
    CUcontext handle; /* NULL: no context */
    int device, gpu;
    uint32_t serial;
    unsigned retained; /* times, if primary */
    bool primary;
    bool sticky; /* holds memory that only its end gives back */
};

struct object {
    uint64_t handle, other, size;
    uint64_t slack;   /* bytes by which it may be counted beyond what it takes */
    uint32_t context; /* serial number of the context that it lives in; 0: in none */
    int16_t device, gpu;
    uint8_t also; /* other GPUs on which it is counted in full, by bit */
    uint8_t kind;
    uint8_t way; /* what its family wants to know */
};

enum { CONTEXTS = 48 };

/* Forgets everything: in a fresh process, and in a forked child. */
void objects_reset(void);

/* Adds an object. False if there are too many already: the caller gives it back. */
bool object_put(const struct object *object);
/* Takes out a random object of a kind, on a device (-1: any). The caller owns it then. */
bool object_take(uint64_t *random, enum kind kind, int device, struct object *object);
/* A random object of a kind, which stays where it is: others may take it, and end it, at any moment. */
bool object_look(uint64_t *random, enum kind kind, struct object *object);
bool object_take_in(uint64_t *random, enum kind kind, uint32_t context, struct object *object);
unsigned objects_count(enum kind kind);
/* The objects of this kind, device and way are gone. */
void objects_forget(enum kind kind, int device, uint8_t way);

/* Contexts. context_forget is for operations that are exclusive. */
struct context *context_add(CUcontext handle, int device, int gpu, bool primary);
struct context *context_find(CUcontext handle);
struct context *context_primary(int device);
struct context *context_random(uint64_t *random);
/* The objects that lived in it are gone. */
void context_emptied(struct context *context);
void context_forget(struct context *context);
unsigned contexts_count(void);
struct context *context_at(unsigned index);

/* How objects of a kind are given back. */
typedef CUresult (*release_function)(const struct object *object);
extern release_function releases[KINDS];

#endif
