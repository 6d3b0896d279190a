/*
 * Texture and surface objects: descriptions by which kernels read and write arrays and memory. They take no memory of
 * the GPU that a program could miss, and keep nothing alive that they describe.
 */
#include "cuda/array/array.h"
#include "reference.h"
#include "resource.h"
#include "texture.h"
#include "view.h"

struct texture {
    struct handle handle;
    struct CUctx_st *context;
    bool viewed;
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC sampling;
    CUDA_RESOURCE_VIEW_DESC view;
};

struct surface {
    struct handle handle;
    struct CUctx_st *context;
    CUDA_RESOURCE_DESC resource;
};

static struct handle_table textures = HANDLE_TABLE(9, 1 << 20);
static struct handle_table surfaces = HANDLE_TABLE(8, 1 << 20);
_Static_assert(sizeof(struct texture) <= 1 << 9, "a texture must fit into its element");
_Static_assert(sizeof(struct surface) <= 1 << 8, "a surface must fit into its element");

/* ---- Textures ---- */

static CUresult check_sampling(const CUDA_TEXTURE_DESC *sampling) {
    for (int i = 0; i < 3; i++)
        REQUIRE(texture_address_mode_valid(sampling->addressMode[i]), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(texture_filter_mode_valid(sampling->filterMode) && texture_filter_mode_valid(sampling->mipmapFilterMode) &&
                (sampling->flags & ~(unsigned)TEXTURE_FLAGS) == 0,
            CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

CUresult cuTexObjectCreate(CUtexObject *pTexObject, const CUDA_RESOURCE_DESC *pResDesc,
                           const CUDA_TEXTURE_DESC *pTexDesc, const CUDA_RESOURCE_VIEW_DESC *pResViewDesc) {
    struct texture *texture;

    REQUIRE_CONTEXT(context);
    REQUIRE(pTexObject != NULL && pResDesc != NULL && pTexDesc != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(resource_check(context, pResDesc));
    TRY(check_sampling(pTexDesc));
    if (pResViewDesc != NULL)
        TRY(view_check(pResDesc, pResViewDesc));
    texture = handle_new(&textures);
    REQUIRE(texture != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    texture->context = context;
    texture->resource = *pResDesc;
    texture->sampling = *pTexDesc;
    texture->viewed = pResViewDesc != NULL;
    if (texture->viewed)
        texture->view = *pResViewDesc;
    *pTexObject = (uintptr_t)texture;
    return CUDA_SUCCESS;
}

/* Objects are numbers of their context's: in another context they mean nothing. */
#define REQUIRE_TEXTURE(object, found)                                                                                 \
    struct texture *found = (struct texture *)(uintptr_t)(object);                                                     \
    REQUIRE_CONTEXT(found##_context);                                                                                  \
    REQUIRE(handle_valid(&textures, found) && found->context == found##_context, CUDA_ERROR_INVALID_VALUE)

CUresult cuTexObjectDestroy(CUtexObject texObject) {
    REQUIRE_TEXTURE(texObject, texture);
    handle_delete(&textures, texture);
    return CUDA_SUCCESS;
}

CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *pResDesc, CUtexObject texObject) {
    REQUIRE_TEXTURE(texObject, texture);
    REQUIRE(pResDesc != NULL, CUDA_ERROR_INVALID_VALUE);
    *pResDesc = texture->resource;
    return CUDA_SUCCESS;
}

CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *pTexDesc, CUtexObject texObject) {
    REQUIRE_TEXTURE(texObject, texture);
    REQUIRE(pTexDesc != NULL, CUDA_ERROR_INVALID_VALUE);
    *pTexDesc = texture->sampling;
    return CUDA_SUCCESS;
}

CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *pResViewDesc, CUtexObject texObject) {
    REQUIRE_TEXTURE(texObject, texture);
    REQUIRE(pResViewDesc != NULL && texture->viewed, CUDA_ERROR_INVALID_VALUE);
    *pResViewDesc = texture->view;
    return CUDA_SUCCESS;
}

/* ---- Surfaces: arrays that were made for it ---- */

CUresult cuSurfObjectCreate(CUsurfObject *pSurfObject, const CUDA_RESOURCE_DESC *pResDesc) {
    struct surface *surface;

    REQUIRE_CONTEXT(context);
    REQUIRE(pSurfObject != NULL && pResDesc != NULL && pResDesc->resType == CU_RESOURCE_TYPE_ARRAY,
            CUDA_ERROR_INVALID_VALUE);
    TRY(resource_check(context, pResDesc));
    REQUIRE((pResDesc->res.array.hArray->descriptor.Flags & CUDA_ARRAY3D_SURFACE_LDST) != 0, CUDA_ERROR_INVALID_VALUE);
    surface = handle_new(&surfaces);
    REQUIRE(surface != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    surface->context = context;
    surface->resource = *pResDesc;
    *pSurfObject = (uintptr_t)surface;
    return CUDA_SUCCESS;
}

#define REQUIRE_SURFACE(object, found)                                                                                 \
    struct surface *found = (struct surface *)(uintptr_t)(object);                                                     \
    REQUIRE_CONTEXT(found##_context);                                                                                  \
    REQUIRE(handle_valid(&surfaces, found) && found->context == found##_context, CUDA_ERROR_INVALID_VALUE)

CUresult cuSurfObjectDestroy(CUsurfObject surfObject) {
    REQUIRE_SURFACE(surfObject, surface);
    handle_delete(&surfaces, surface);
    return CUDA_SUCCESS;
}

CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *pResDesc, CUsurfObject surfObject) {
    REQUIRE_SURFACE(surfObject, surface);
    REQUIRE(pResDesc != NULL, CUDA_ERROR_INVALID_VALUE);
    *pResDesc = surface->resource;
    return CUDA_SUCCESS;
}

/* ---- When a context dies ---- */

static void delete_texture_of(void *element, void *context) {
    if (((struct texture *)element)->context == context)
        handle_delete(&textures, element);
}

static void delete_surface_of(void *element, void *context) {
    if (((struct surface *)element)->context == context)
        handle_delete(&surfaces, element);
}

void textures_context_gone(struct CUctx_st *context) {
    handle_each(&textures, delete_texture_of, context);
    handle_each(&surfaces, delete_surface_of, context);
    references_context_gone(context);
}
