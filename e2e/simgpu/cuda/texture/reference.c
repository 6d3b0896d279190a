#include "reference.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/image/module.h"

static struct handle_table textures = HANDLE_TABLE(9, 1 << 18);
static struct handle_table surfaces = HANDLE_TABLE(6, 1 << 18);
_Static_assert(sizeof(struct CUtexref_st) <= 1 << 9, "a texture reference must fit into its element");
_Static_assert(sizeof(struct CUsurfref_st) <= 1 << 6, "a surface reference must fit into its element");

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* around the search for a reference by name */

bool texture_reference_valid(CUtexref reference) {
    return handle_valid(&textures, reference);
}

bool surface_reference_valid(CUsurfref reference) {
    return handle_valid(&surfaces, reference);
}

static void delete (struct handle_table *table, struct reference *reference) {
    free(reference->name);
    handle_delete(table, reference);
}

/* ---- Of a module ---- */

struct search {
    CUmodule module;
    const char *name;
    struct reference *found;
};

static void match(void *element, void *arg) {
    struct reference *reference = element;
    struct search *search = arg;

    if (reference->module == search->module && strcmp(reference->name, search->name) == 0)
        search->found = reference;
}

/* Under the mutex. */
static CUresult make(struct handle_table *table, struct CUctx_st *context, struct search *search) {
    struct reference *reference;
    char *name = strdup(search->name);

    REQUIRE(name != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    reference = handle_new(table);
    if (reference == NULL) {
        free(name);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    reference->context = context;
    reference->name = name;
    reference->module = search->module;
    search->found = reference;
    return CUDA_SUCCESS;
}

/* The same name gets the same handle each time. */
static CUresult get(struct handle_table *table, struct search *search, enum image_variable_kind kind) {
    struct CUctx_st *context;
    CUresult ret = CUDA_SUCCESS;

    TRY(module_find_reference(search->module, search->name, kind, &context));
    pthread_mutex_lock(&mutex);
    handle_each(table, match, search);
    if (search->found == NULL)
        ret = make(table, context, search);
    pthread_mutex_unlock(&mutex);
    return ret;
}

CUresult cuModuleGetTexRef(CUtexref *pTexRef, CUmodule hmod, const char *name) {
    struct search search = {.module = hmod, .name = name};

    REQUIRE_INITIALISED();
    REQUIRE(pTexRef != NULL && name != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(get(&textures, &search, IMAGE_TEXTURE));
    *pTexRef = (CUtexref)(void *)search.found;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetSurfRef(CUsurfref *pSurfRef, CUmodule hmod, const char *name) {
    struct search search = {.module = hmod, .name = name};

    REQUIRE_INITIALISED();
    REQUIRE(pSurfRef != NULL && name != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(get(&surfaces, &search, IMAGE_SURFACE));
    *pSurfRef = (CUsurfref)(void *)search.found;
    return CUDA_SUCCESS;
}

/* ---- Of the program ---- */

CUresult cuTexRefCreate(CUtexref *pTexRef) {
    struct CUtexref_st *texture;

    REQUIRE_CONTEXT(context);
    REQUIRE(pTexRef != NULL, CUDA_ERROR_INVALID_VALUE);
    texture = handle_new(&textures);
    REQUIRE(texture != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    texture->reference.context = context;
    *pTexRef = texture;
    return CUDA_SUCCESS;
}

/* A module's go with it alone. */
CUresult cuTexRefDestroy(CUtexref hTexRef) {
    REQUIRE_CONTEXT(context);
    (void)context;
    REQUIRE(texture_reference_valid(hTexRef) && hTexRef->reference.module == NULL, CUDA_ERROR_INVALID_VALUE);
    delete (&textures, &hTexRef->reference);
    return CUDA_SUCCESS;
}

/* ---- When what they belong to goes ---- */

struct owner {
    struct handle_table *table;
    CUmodule module;          /* or, where it is NULL, */
    struct CUctx_st *context; /* all of a context */
};

static void delete_of(void *element, void *arg) {
    struct reference *reference = element;
    const struct owner *owner = arg;

    if (owner->module != NULL ? reference->module == owner->module : reference->context == owner->context)
        delete (owner->table, reference);
}

static void gone(CUmodule module, struct CUctx_st *context) {
    pthread_mutex_lock(&mutex);
    handle_each(&textures, delete_of, &(struct owner){&textures, module, context});
    handle_each(&surfaces, delete_of, &(struct owner){&surfaces, module, context});
    pthread_mutex_unlock(&mutex);
}

void references_module_gone(CUmodule module) {
    gone(module, NULL);
}

void references_context_gone(struct CUctx_st *context) {
    gone(NULL, context);
}
