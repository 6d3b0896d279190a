#include "array.h"

#include "engine.h"
#include "heap.h"

#define MAX_LEVELS 20
#define FLAGS                                                                                                          \
    (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_TEXTURE_GATHER |           \
     CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)
#define UNBACKED (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)

struct CUmipmappedArray_st {
    struct handle handle;
    struct CUctx_st *context;
    unsigned level_count;
    CUdeviceptr address;
    CUarray levels[MAX_LEVELS];
};

static struct handle_table arrays = HANDLE_TABLE(7, 1 << 20);
static struct handle_table mipmaps = HANDLE_TABLE(8, 1 << 18);
_Static_assert(sizeof(struct CUarray_st) <= 1 << 7, "an array must fit into its element");
_Static_assert(sizeof(struct CUmipmappedArray_st) <= 1 << 8, "a mipmapped array must fit into its element");

/* How a format is stored: bytes of a block of block x block texels, for each channel. */
static bool format_layout(CUarray_format format, unsigned channels, unsigned *block, unsigned *bytes) {
    *block = 1;
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        *bytes = channels;
        return true;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        *bytes = 2 * channels;
        return true;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        *bytes = 4 * channels;
        return true;
    case CU_AD_FORMAT_BC1_UNORM:
    case CU_AD_FORMAT_BC1_UNORM_SRGB:
    case CU_AD_FORMAT_BC4_UNORM:
    case CU_AD_FORMAT_BC4_SNORM:
        *block = 4;
        *bytes = 8;
        return true;
    case CU_AD_FORMAT_BC2_UNORM:
    case CU_AD_FORMAT_BC2_UNORM_SRGB:
    case CU_AD_FORMAT_BC3_UNORM:
    case CU_AD_FORMAT_BC3_UNORM_SRGB:
    case CU_AD_FORMAT_BC5_UNORM:
    case CU_AD_FORMAT_BC5_SNORM:
    case CU_AD_FORMAT_BC6H_UF16:
    case CU_AD_FORMAT_BC6H_SF16:
    case CU_AD_FORMAT_BC7_UNORM:
    case CU_AD_FORMAT_BC7_UNORM_SRGB:
        *block = 4;
        *bytes = 16;
        return true;
    default:
        return false;
    }
}

bool array_valid(CUarray array) {
    return handle_valid(&arrays, array);
}

static CUresult check(const CUDA_ARRAY3D_DESCRIPTOR *d) {
    unsigned block, bytes;

    REQUIRE(d->Width != 0 && d->Width <= 1 << 20 && d->Height <= 1 << 17 && d->Depth <= 1 << 15,
            CUDA_ERROR_INVALID_VALUE);
    REQUIRE(d->Height != 0 || d->Depth == 0 || (d->Flags & CUDA_ARRAY3D_LAYERED) != 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(d->NumChannels == 1 || d->NumChannels == 2 || d->NumChannels == 4, CUDA_ERROR_INVALID_VALUE);
    REQUIRE((d->Flags & ~(unsigned)FLAGS) == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(format_layout(d->Format, d->NumChannels, &block, &bytes), CUDA_ERROR_INVALID_VALUE);
    REQUIRE((d->Flags & CUDA_ARRAY3D_CUBEMAP) == 0 || (d->Width == d->Height && d->Depth % 6 == 0 && d->Depth != 0),
            CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

/* An array's rows, and how many bytes they are in all. */
static uint64_t lay_out(struct CUarray_st *array) {
    const CUDA_ARRAY3D_DESCRIPTOR *d = &array->descriptor;
    unsigned block, bytes;

    format_layout(d->Format, d->NumChannels, &block, &bytes);
    array->row_bytes = (d->Width + block - 1) / block * bytes;
    array->rows = d->Height == 0 ? 1 : (d->Height + block - 1) / block;
    array->layers = d->Depth == 0 ? 1 : d->Depth;
    return array->row_bytes * array->rows * array->layers;
}

static CUresult array_new(struct CUctx_st *context, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, CUarray *out) {
    struct CUarray_st *array = handle_new(&arrays);
    CUresult ret = CUDA_SUCCESS;
    uint64_t size;

    REQUIRE(array != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    array->context = context;
    array->descriptor = *descriptor;
    size = lay_out(array);
    if ((descriptor->Flags & UNBACKED) == 0)
        ret = heap_alloc(context, size, PACK_DEVICE, &array->address);
    if (ret != CUDA_SUCCESS)
        handle_delete(&arrays, array);
    else
        *out = array;
    return ret;
}

CUresult cuArray3DCreate_v2(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray) {
    REQUIRE_CONTEXT(context);
    REQUIRE(pHandle != NULL && pAllocateArray != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(check(pAllocateArray));
    return array_new(context, pAllocateArray, pHandle);
}

CUresult cuArrayCreate_v2(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR *pAllocateArray) {
    CUDA_ARRAY3D_DESCRIPTOR descriptor;

    REQUIRE(!driver_ready() || pAllocateArray != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_INITIALISED();
    descriptor = (CUDA_ARRAY3D_DESCRIPTOR){.Width = pAllocateArray->Width,
                                           .Height = pAllocateArray->Height,
                                           .Format = pAllocateArray->Format,
                                           .NumChannels = pAllocateArray->NumChannels};
    return cuArray3DCreate_v2(pHandle, &descriptor);
}

#define REQUIRE_ARRAY(array)                                                                                           \
    REQUIRE_INITIALISED();                                                                                             \
    REQUIRE(array_valid(array), CUDA_ERROR_INVALID_HANDLE)

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *pArrayDescriptor, CUarray hArray) {
    REQUIRE_ARRAY(hArray);
    REQUIRE(pArrayDescriptor != NULL, CUDA_ERROR_INVALID_VALUE);
    *pArrayDescriptor = hArray->descriptor;
    return CUDA_SUCCESS;
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *pArrayDescriptor, CUarray hArray) {
    REQUIRE_ARRAY(hArray);
    REQUIRE(pArrayDescriptor != NULL, CUDA_ERROR_INVALID_VALUE);
    *pArrayDescriptor = (CUDA_ARRAY_DESCRIPTOR){.Width = hArray->descriptor.Width,
                                                .Height = hArray->descriptor.Height,
                                                .Format = hArray->descriptor.Format,
                                                .NumChannels = hArray->descriptor.NumChannels};
    return CUDA_SUCCESS;
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *memoryRequirements, CUarray array,
                                      CUdevice device) {
    REQUIRE_ARRAY(array);
    REQUIRE(device_valid(device), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(memoryRequirements != NULL && (array->descriptor.Flags & UNBACKED) != 0, CUDA_ERROR_INVALID_VALUE);
    *memoryRequirements = (CUDA_ARRAY_MEMORY_REQUIREMENTS){
        .size = round_up(array->row_bytes * array->rows * array->layers, SIM_GRANULARITY),
        .alignment = SIM_GRANULARITY};
    return CUDA_SUCCESS;
}

static void release_memory(struct CUctx_st *context, CUdeviceptr address) {
    if (address == 0)
        return;
    engine_wait(context->device, atomic_load(&context->mark));
    heap_free(address);
}

CUresult cuArrayDestroy(CUarray hArray) {
    REQUIRE_ARRAY(hArray);
    REQUIRE(hArray->of == NULL, CUDA_ERROR_INVALID_HANDLE);
    release_memory(hArray->context, hArray->address);
    handle_delete(&arrays, hArray);
    return CUDA_SUCCESS;
}

/* ---- Mipmapped arrays: all levels in one piece of memory ---- */

static size_t halve(size_t extent, unsigned level) {
    return extent == 0 ? 0 : (extent >> level) != 0 ? extent >> level : 1;
}

static CUresult make_levels(struct CUmipmappedArray_st *mipmap, const CUDA_ARRAY3D_DESCRIPTOR *top, unsigned count,
                            uint64_t *size) {
    *size = 0;
    for (unsigned i = 0; i < count; i++) {
        struct CUarray_st *level = handle_new(&arrays);

        REQUIRE(level != NULL, CUDA_ERROR_OUT_OF_MEMORY);
        mipmap->levels[mipmap->level_count++] = level;
        level->context = mipmap->context;
        level->of = mipmap;
        level->descriptor = *top;
        level->descriptor.Width = halve(top->Width, i);
        level->descriptor.Height = halve(top->Height, i);
        if ((top->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) == 0)
            level->descriptor.Depth = halve(top->Depth, i);
        level->address = *size; /* relative to the first, for now */
        *size += round_up(lay_out(level), 512);
    }
    return CUDA_SUCCESS;
}

static void delete_mipmap(struct CUmipmappedArray_st *mipmap) {
    for (unsigned i = 0; i < mipmap->level_count; i++)
        handle_delete(&arrays, mipmap->levels[i]);
    handle_delete(&mipmaps, mipmap);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc,
                                unsigned int numMipmapLevels) {
    struct CUmipmappedArray_st *mipmap;
    bool backed;
    uint64_t size;
    CUresult ret;

    REQUIRE_CONTEXT(context);
    REQUIRE(pHandle != NULL && pMipmappedArrayDesc != NULL && numMipmapLevels != 0, CUDA_ERROR_INVALID_VALUE);
    TRY(check(pMipmappedArrayDesc));
    mipmap = handle_new(&mipmaps);
    REQUIRE(mipmap != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    mipmap->context = context;
    backed = (pMipmappedArrayDesc->Flags & UNBACKED) == 0;
    ret = make_levels(mipmap, pMipmappedArrayDesc, numMipmapLevels < MAX_LEVELS ? numMipmapLevels : MAX_LEVELS, &size);
    if (ret == CUDA_SUCCESS && backed)
        ret = heap_alloc(context, size, PACK_DEVICE, &mipmap->address);
    if (ret != CUDA_SUCCESS) {
        delete_mipmap(mipmap);
        return ret;
    }
    for (unsigned i = 0; i < mipmap->level_count; i++)
        mipmap->levels[i]->address = backed ? mipmap->address + mipmap->levels[i]->address : 0;
    *pHandle = mipmap;
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayGetLevel(CUarray *pLevelArray, CUmipmappedArray hMipmappedArray, unsigned int level) {
    REQUIRE_INITIALISED();
    REQUIRE(handle_valid(&mipmaps, hMipmappedArray), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(pLevelArray != NULL && level < hMipmappedArray->level_count, CUDA_ERROR_INVALID_VALUE);
    *pLevelArray = hMipmappedArray->levels[level];
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray) {
    REQUIRE_INITIALISED();
    REQUIRE(handle_valid(&mipmaps, hMipmappedArray), CUDA_ERROR_INVALID_HANDLE);
    release_memory(hMipmappedArray->context, hMipmappedArray->address);
    delete_mipmap(hMipmappedArray);
    return CUDA_SUCCESS;
}

/* Their memory goes with the context's other allocations. */
static void delete_array_of(void *element, void *context) {
    if (((CUarray)element)->context == context && ((CUarray)element)->of == NULL)
        handle_delete(&arrays, element);
}

static void delete_mipmap_of(void *element, void *context) {
    if (((CUmipmappedArray)element)->context == context)
        delete_mipmap(element);
}

void arrays_context_gone(struct CUctx_st *context) {
    handle_each(&arrays, delete_array_of, context);
    handle_each(&mipmaps, delete_mipmap_of, context);
}
