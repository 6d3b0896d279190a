/* The linker: puts images together into a cubin. It is the host's alone, no memory of a GPU is taken. */
#include <stdlib.h>
#include <string.h>

#include "image.h"
#include "module.h"

#define ARCHIVE_MAGIC "!<arch>\n"

struct CUlinkState_st {
    struct handle handle;
    struct image image; /* what was added so far */
    void *cubin;        /* once it is complete */
    size_t size;
};

static struct handle_table links = HANDLE_TABLE(7, 1 << 16);
_Static_assert(sizeof(struct CUlinkState_st) <= 1 << 7, "a linker must fit into its element");

#define REQUIRE_LINK(state)                                                                                            \
    REQUIRE_INITIALISED();                                                                                             \
    REQUIRE(handle_valid(&links, state), CUDA_ERROR_INVALID_HANDLE)

CUresult cuLinkCreate_v2(unsigned int numOptions, CUjit_option *options, void **optionValues, CUlinkState *stateOut) {
    struct CUlinkState_st *state;

    REQUIRE_CONTEXT(context);
    (void)context;
    REQUIRE(stateOut != NULL && (numOptions == 0 || (options != NULL && optionValues != NULL)),
            CUDA_ERROR_INVALID_VALUE);
    state = handle_new(&links);
    REQUIRE(state != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    *stateOut = state;
    return CUDA_SUCCESS;
}

CUresult cuLinkCreate(unsigned int numOptions, CUjit_option *options, void **optionValues, CUlinkState *stateOut) {
    return cuLinkCreate_v2(numOptions, options, optionValues, stateOut);
}

/* Objects and archives are the host's, with device code in them that nobody here looks for. */
static CUresult add(struct CUlinkState_st *state, CUjitInputType type, const void *data, size_t size) {
    struct image image;
    CUresult ret;

    if (type == CU_JIT_INPUT_OBJECT || type == CU_JIT_INPUT_LIBRARY)
        return size >= 8 && (memcmp(data, "\177ELF", 4) == 0 || memcmp(data, ARCHIVE_MAGIC, 8) == 0)
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_INVALID_IMAGE;
    ret = image_read(data, &image);
    REQUIRE(ret == CUDA_SUCCESS || type != CU_JIT_INPUT_PTX, CUDA_ERROR_INVALID_PTX);
    if (ret != CUDA_SUCCESS)
        return ret;
    ret = image_append(&state->image, &image);
    image_free(&image);
    return ret;
}

CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t size, const char *name,
                          unsigned int numOptions, CUjit_option *options, void **optionValues) {
    char *copy;
    CUresult ret;

    REQUIRE_LINK(state);
    REQUIRE(data != NULL && size != 0 && (numOptions == 0 || (options != NULL && optionValues != NULL)),
            CUDA_ERROR_INVALID_VALUE);
    (void)name;
    REQUIRE((int)type >= 0 && type < CU_JIT_INPUT_NVVM && state->cubin == NULL, CUDA_ERROR_INVALID_VALUE);
    copy = calloc(1, size + 64); /* PTX need not end with a zero here */
    REQUIRE(copy != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    memcpy(copy, data, size);
    ret = add(state, type, copy, size);
    free(copy);
    return ret;
}

CUresult cuLinkAddData(CUlinkState state, CUjitInputType type, void *data, size_t size, const char *name,
                       unsigned int numOptions, CUjit_option *options, void **optionValues) {
    return cuLinkAddData_v2(state, type, data, size, name, numOptions, options, optionValues);
}

CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char *path, unsigned int numOptions,
                          CUjit_option *options, void **optionValues) {
    char *contents;
    size_t size;
    CUresult ret;

    REQUIRE_LINK(state);
    REQUIRE(path != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(module_read_file(path, &contents, &size));
    ret = cuLinkAddData_v2(state, type, contents, size, path, numOptions, options, optionValues);
    free(contents);
    return ret;
}

CUresult cuLinkAddFile(CUlinkState state, CUjitInputType type, const char *path, unsigned int numOptions,
                       CUjit_option *options, void **optionValues) {
    return cuLinkAddFile_v2(state, type, path, numOptions, options, optionValues);
}

/* The cubin is the linker's and goes with it. */
CUresult cuLinkComplete(CUlinkState state, void **cubinOut, size_t *sizeOut) {
    REQUIRE_LINK(state);
    REQUIRE(cubinOut != NULL, CUDA_ERROR_INVALID_VALUE);
    if (state->cubin == NULL)
        TRY(image_write_cubin(&state->image, &state->cubin, &state->size));
    *cubinOut = state->cubin;
    if (sizeOut != NULL)
        *sizeOut = state->size;
    return CUDA_SUCCESS;
}

CUresult cuLinkDestroy(CUlinkState state) {
    REQUIRE_LINK(state);
    image_free(&state->image);
    free(state->cubin);
    handle_delete(&links, state);
    return CUDA_SUCCESS;
}
