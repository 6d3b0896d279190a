#include "user_object.h"

#include <limits.h>
#include <stdlib.h>

#include "cuda/work/engine.h"
#include "graph.h"

struct CUuserObject_st {
    struct handle handle;
    uint64_t references; /* all of them */
    uint64_t own;        /* the program's, without its graphs' */
    CUhostFn destroy;
    void *data;
};

struct object_references {
    struct CUuserObject_st *object;
    uint64_t count;
    struct object_references *next;
};

static struct handle_table objects = HANDLE_TABLE(6, 1 << 20);
_Static_assert(sizeof(struct CUuserObject_st) <= 1 << 6, "a user object must fit into its element");

/* ---- Under the mutex ---- */

static void unref_locked(struct CUuserObject_st *object, uint64_t count) {
    object->references -= count;
    if (object->references != 0)
        return;
    engine_call(0, 0, object->destroy, object->data);
    handle_delete(&objects, object);
}

static struct object_references *of_object(struct object_references *references, const struct CUuserObject_st *object) {
    while (references != NULL && references->object != object)
        references = references->next;
    return references;
}

static bool add_locked(struct object_references **references, struct CUuserObject_st *object, uint64_t count) {
    struct object_references *entry = of_object(*references, object);

    if (entry == NULL) {
        entry = calloc(1, sizeof(*entry));
        if (entry == NULL)
            return false;
        entry->object = object;
        entry->next = *references;
        *references = entry;
    }
    entry->count += count;
    object->references += count;
    return true;
}

bool object_references_copy_locked(const struct object_references *references, struct object_references **copy) {
    *copy = NULL;
    for (; references != NULL; references = references->next) {
        if (!add_locked(copy, references->object, references->count))
            return false;
    }
    return true;
}

void object_references_drop_locked(struct object_references *references) {
    while (references != NULL) {
        struct object_references *next = references->next;

        unref_locked(references->object, references->count);
        free(references);
        references = next;
    }
}

static void drop_held(void *references) {
    graph_lock();
    object_references_drop_locked(references);
    graph_unlock();
}

void object_references_hold_locked(struct object_references *references, CUdevice device, uint64_t mark) {
    if (references != NULL)
        engine_call(device, mark, drop_held, references);
}

static CUresult graph_retain_locked(CUgraph graph, CUuserObject object, uint64_t count, bool move) {
    REQUIRE(!move || count <= object->own, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(add_locked(&graph->objects, object, count), CUDA_ERROR_OUT_OF_MEMORY);
    if (move) {
        object->own -= count;
        object->references -= count;
    }
    return CUDA_SUCCESS;
}

static CUresult graph_release_locked(CUgraph graph, CUuserObject object, uint64_t count) {
    struct object_references **link = &graph->objects, *entry;

    while (*link != NULL && (*link)->object != object)
        link = &(*link)->next;
    entry = *link;
    REQUIRE(entry != NULL && count <= entry->count, CUDA_ERROR_INVALID_VALUE);
    entry->count -= count;
    if (entry->count == 0) {
        *link = entry->next;
        free(entry);
    }
    unref_locked(object, count);
    return CUDA_SUCCESS;
}

/* ---- The API ---- */

static bool count_valid(unsigned count) {
    return count != 0 && count <= INT_MAX;
}

static bool object_valid(CUuserObject object) {
    return handle_valid(&objects, object);
}

CUresult cuUserObjectCreate(CUuserObject *object_out, void *ptr, CUhostFn destroy, unsigned int initialRefcount,
                            unsigned int flags) {
    struct CUuserObject_st *object;

    REQUIRE(object_out != NULL && destroy != NULL && count_valid(initialRefcount), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(flags == CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_INITIALISED();
    object = handle_new(&objects);
    REQUIRE(object != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    object->references = object->own = initialRefcount;
    object->destroy = destroy;
    object->data = ptr;
    *object_out = object;
    return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned int count) {
    CHECK_AND_ENTER(object_valid(object) && count_valid(count));
    object->own += count;
    object->references += count;
    LEAVE(CUDA_SUCCESS);
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned int count) {
    CHECK_AND_ENTER(object_valid(object) && count_valid(count) && count <= object->own);
    object->own -= count;
    unref_locked(object, count);
    LEAVE(CUDA_SUCCESS);
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags) {
    CHECK_AND_ENTER(graph_valid(graph) && object_valid(object) && count_valid(count) &&
                    (flags & ~(unsigned)CU_GRAPH_USER_OBJECT_MOVE) == 0);
    LEAVE(graph_retain_locked(graph, object, count, flags == CU_GRAPH_USER_OBJECT_MOVE));
}

CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count) {
    CHECK_AND_ENTER(graph_valid(graph) && object_valid(object) && count_valid(count));
    LEAVE(graph_release_locked(graph, object, count));
}
