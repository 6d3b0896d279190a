#include "array.h"

#include "cuda/memory/heap.h"
#include "cuda/work/engine.h"

#define FLAGS                                                                                                          \
    (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_TEXTURE_GATHER |           \
     CUDA_ARRAY3D_DEPTH_TEXTURE | CUDA_ARRAY3D_COLOR_ATTACHMENT | CUDA_ARRAY3D_SPARSE |                                \
     CUDA_ARRAY3D_DEFERRED_MAPPING | CUDA_ARRAY3D_VIDEO_ENCODE_DECODE)

/* The GPU keeps what has more than one row in tiles of so many bytes by so many rows. */
#define TILE_BYTES 64
#define TILE_ROWS 8
#define ALIGNMENT 512

static struct handle_table arrays = HANDLE_TABLE(8, 1 << 20);
static struct handle_table mipmaps = HANDLE_TABLE(8, 1 << 18);
_Static_assert(sizeof(struct CUarray_st) <= 1 << 8, "an array must fit into its element");
_Static_assert(sizeof(struct CUmipmappedArray_st) <= 1 << 8, "a mipmapped array must fit into its element");

bool array_valid(CUarray array) {
    return handle_valid(&arrays, array);
}

bool mipmap_valid(CUmipmappedArray mipmap) {
    return handle_valid(&mipmaps, mipmap);
}

/* ---- Descriptors ---- */

static CUresult check_format(const CUDA_ARRAY3D_DESCRIPTOR *d) {
    const struct array_format *format = array_format(d->Format);

    REQUIRE(format != NULL, CUDA_ERROR_INVALID_VALUE);
    if (format->channels != 0)
        REQUIRE(d->NumChannels == format->channels, CUDA_ERROR_INVALID_VALUE);
    else
        REQUIRE(d->NumChannels == 1 || d->NumChannels == 2 || d->NumChannels == 4, CUDA_ERROR_INVALID_VALUE);
    /* Where texels share their colour, there are as many as share it. */
    if (format->block_width == 2)
        REQUIRE(d->Width % 2 == 0, CUDA_ERROR_INVALID_VALUE);
    for (int i = 0; i < format->plane_count; i++)
        REQUIRE(d->Height != 0 && d->Depth == 0 && d->Width % format->planes[i].x == 0 &&
                    d->Height % format->planes[i].y == 0,
                CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

static CUresult check(const CUDA_ARRAY3D_DESCRIPTOR *d) {
    unsigned unbacked = d->Flags & ARRAY_UNBACKED;

    REQUIRE(d->Width != 0 && d->Width <= 1 << 20 && d->Height <= 1 << 17 && d->Depth <= 1 << 15,
            CUDA_ERROR_INVALID_VALUE);
    REQUIRE(d->Height != 0 || d->Depth == 0 || (d->Flags & CUDA_ARRAY3D_LAYERED) != 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE((d->Flags & ~(unsigned)FLAGS) == 0 && unbacked != ARRAY_UNBACKED, CUDA_ERROR_INVALID_VALUE);
    REQUIRE((d->Flags & CUDA_ARRAY3D_SPARSE) == 0 || d->Height != 0, CUDA_ERROR_INVALID_VALUE);
    TRY(check_format(d));
    REQUIRE((d->Flags & CUDA_ARRAY3D_CUBEMAP) == 0 || (d->Width == d->Height && d->Depth % 6 == 0 && d->Depth != 0),
            CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

/* An array's rows as copies see them, and how many bytes of memory it takes, which is more where tiles are not full. */
static void lay_out(struct CUarray_st *array) {
    const CUDA_ARRAY3D_DESCRIPTOR *d = &array->descriptor;
    const struct array_format *format = array_format(d->Format);
    uint64_t pitch, rows;

    array->row_bytes =
        (d->Width + format->block_width - 1) / format->block_width * array_format_bytes(format, d->NumChannels);
    array->rows = d->Height == 0 ? 1 : (d->Height + format->block_height - 1) / format->block_height;
    array->layers = d->Depth == 0 ? 1 : d->Depth;
    for (int i = 1; i < format->plane_count; i++) /* each as wide, in bytes, as the first */
        array->rows += d->Height / format->planes[i].y;
    pitch = d->Height == 0 ? array->row_bytes : round_up(array->row_bytes, TILE_BYTES);
    rows = d->Height == 0 ? 1 : round_up(array->rows, TILE_ROWS);
    array->size = round_up(pitch * rows, ALIGNMENT) * array->layers;
}

/* ---- Arrays ---- */

CUresult array_over(struct CUctx_st *context, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, CUdeviceptr address,
                    CUarray *out) {
    struct CUarray_st *array;

    TRY(check(descriptor));
    array = handle_new(&arrays);
    REQUIRE(array != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    array->context = context;
    array->descriptor = *descriptor;
    array->address = address;
    array->borrowed = true;
    lay_out(array);
    *out = array;
    return CUDA_SUCCESS;
}

CUresult cuArray3DCreate_v2(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray) {
    CUresult ret = CUDA_SUCCESS;
    CUarray array;

    REQUIRE_CONTEXT(context);
    REQUIRE(pHandle != NULL && pAllocateArray != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(array_over(context, pAllocateArray, 0, &array));
    array->borrowed = false;
    if ((pAllocateArray->Flags & ARRAY_UNBACKED) == 0)
        ret = heap_alloc(context, array->size, PACK_DEVICE, &array->address);
    if (ret != CUDA_SUCCESS)
        handle_delete(&arrays, array);
    else
        *pHandle = array;
    return ret;
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

CUresult cuArray3DCreate(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR_v1 *pAllocateArray) {
    CUDA_ARRAY3D_DESCRIPTOR descriptor;

    REQUIRE(!driver_ready() || pAllocateArray != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_INITIALISED();
    descriptor = (CUDA_ARRAY3D_DESCRIPTOR){.Width = pAllocateArray->Width,
                                           .Height = pAllocateArray->Height,
                                           .Depth = pAllocateArray->Depth,
                                           .Format = pAllocateArray->Format,
                                           .NumChannels = pAllocateArray->NumChannels,
                                           .Flags = pAllocateArray->Flags};
    return cuArray3DCreate_v2(pHandle, &descriptor);
}

CUresult cuArrayCreate(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR_v1 *pAllocateArray) {
    CUDA_ARRAY3D_DESCRIPTOR_v1 descriptor;

    REQUIRE(!driver_ready() || pAllocateArray != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_INITIALISED();
    descriptor = (CUDA_ARRAY3D_DESCRIPTOR_v1){.Width = pAllocateArray->Width,
                                              .Height = pAllocateArray->Height,
                                              .Format = pAllocateArray->Format,
                                              .NumChannels = pAllocateArray->NumChannels};
    return cuArray3DCreate(pHandle, &descriptor);
}

#define REQUIRE_ARRAY(array)                                                                                           \
    REQUIRE_INITIALISED();                                                                                             \
    REQUIRE(array_valid(array), CUDA_ERROR_INVALID_HANDLE)
#define REQUIRE_MIPMAP(mipmap)                                                                                         \
    REQUIRE_INITIALISED();                                                                                             \
    REQUIRE(mipmap_valid(mipmap), CUDA_ERROR_INVALID_HANDLE)

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

CUresult cuArray3DGetDescriptor(CUDA_ARRAY3D_DESCRIPTOR_v1 *pArrayDescriptor, CUarray hArray) {
    REQUIRE_ARRAY(hArray);
    REQUIRE(pArrayDescriptor != NULL, CUDA_ERROR_INVALID_VALUE);
    *pArrayDescriptor = (CUDA_ARRAY3D_DESCRIPTOR_v1){.Width = (unsigned)hArray->descriptor.Width,
                                                     .Height = (unsigned)hArray->descriptor.Height,
                                                     .Depth = (unsigned)hArray->descriptor.Depth,
                                                     .Format = hArray->descriptor.Format,
                                                     .NumChannels = hArray->descriptor.NumChannels,
                                                     .Flags = hArray->descriptor.Flags};
    return CUDA_SUCCESS;
}

CUresult cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR_v1 *pArrayDescriptor, CUarray hArray) {
    REQUIRE_ARRAY(hArray);
    REQUIRE(pArrayDescriptor != NULL, CUDA_ERROR_INVALID_VALUE);
    *pArrayDescriptor = (CUDA_ARRAY_DESCRIPTOR_v1){.Width = (unsigned)hArray->descriptor.Width,
                                                   .Height = (unsigned)hArray->descriptor.Height,
                                                   .Format = hArray->descriptor.Format,
                                                   .NumChannels = hArray->descriptor.NumChannels};
    return CUDA_SUCCESS;
}

static CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, unsigned flags, uint64_t size, CUdevice device) {
    REQUIRE(device_valid(device), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(out != NULL && (flags & CUDA_ARRAY3D_DEFERRED_MAPPING) != 0, CUDA_ERROR_INVALID_VALUE);
    *out = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = round_up(size, SIM_GRANULARITY), .alignment = SIM_GRANULARITY};
    return CUDA_SUCCESS;
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *memoryRequirements, CUarray array,
                                      CUdevice device) {
    REQUIRE_ARRAY(array);
    REQUIRE(array->of == NULL && array->plane_of == NULL, CUDA_ERROR_INVALID_VALUE);
    return requirements(memoryRequirements, array->descriptor.Flags, array->size, device);
}

CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *memoryRequirements,
                                               CUmipmappedArray mipmap, CUdevice device) {
    REQUIRE_MIPMAP(mipmap);
    return requirements(memoryRequirements, mipmap->levels[0]->descriptor.Flags, mipmap->size, device);
}

/* Planes share the array's memory, one after another. */
void array_place(CUarray array, CUdeviceptr address) {
    uint64_t offset = 0;

    array->address = address;
    for (int i = 0; i < 3 && array_format(array->descriptor.Format)->plane_count > i; i++) {
        if (array->planes[i] != NULL)
            array->planes[i]->address = address != 0 ? address + offset : 0;
        offset += array->row_bytes * (array->descriptor.Height / array_format(array->descriptor.Format)->planes[i].y);
    }
}

CUresult cuArrayGetPlane(CUarray *pPlaneArray, CUarray hArray, unsigned int planeIdx) {
    const struct array_format *format;
    const struct array_plane *plane;
    CUDA_ARRAY3D_DESCRIPTOR descriptor;

    REQUIRE_ARRAY(hArray);
    format = array_format(hArray->descriptor.Format);
    REQUIRE(pPlaneArray != NULL && planeIdx < format->plane_count, CUDA_ERROR_INVALID_VALUE);
    if (hArray->planes[planeIdx] == NULL) {
        plane = &format->planes[planeIdx];
        descriptor = hArray->descriptor;
        descriptor.Format = plane->format;
        descriptor.NumChannels = plane->channels;
        descriptor.Width /= plane->x;
        descriptor.Height /= plane->y;
        TRY(array_over(hArray->context, &descriptor, 0, &hArray->planes[planeIdx]));
        hArray->planes[planeIdx]->plane_of = hArray;
        array_place(hArray, hArray->address);
    }
    *pPlaneArray = hArray->planes[planeIdx];
    return CUDA_SUCCESS;
}

static void release_memory(struct CUctx_st *context, CUdeviceptr address, bool borrowed) {
    if (address == 0 || borrowed)
        return;
    engine_wait(context->device, atomic_load(&context->mark));
    heap_free(address);
}

static void delete_array(CUarray array) {
    for (int i = 0; i < 3; i++) {
        if (array->planes[i] != NULL)
            handle_delete(&arrays, array->planes[i]);
    }
    array_unmap_all(&array->mappings);
    handle_delete(&arrays, array);
}

CUresult cuArrayDestroy(CUarray hArray) {
    REQUIRE_ARRAY(hArray);
    REQUIRE(hArray->of == NULL && hArray->plane_of == NULL, CUDA_ERROR_INVALID_HANDLE);
    release_memory(hArray->context, hArray->address, hArray->borrowed);
    delete_array(hArray);
    return CUDA_SUCCESS;
}

/* ---- Mipmapped arrays: all levels in one piece of memory ---- */

static size_t halve(size_t extent, unsigned level) {
    return extent == 0 ? 0 : (extent >> level) != 0 ? extent >> level : 1;
}

/* As many levels as there are until all sides have one texel. */
static unsigned level_limit(const CUDA_ARRAY3D_DESCRIPTOR *top) {
    bool layered = (top->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
    size_t longest = top->Width > top->Height ? top->Width : top->Height;
    unsigned limit;

    if (!layered && top->Depth > longest)
        longest = top->Depth;
    limit = 64 - (unsigned)__builtin_clzl(longest);
    return limit < ARRAY_LEVELS ? limit : ARRAY_LEVELS;
}

static CUresult make_levels(struct CUmipmappedArray_st *mipmap, const CUDA_ARRAY3D_DESCRIPTOR *top, unsigned count) {
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
        lay_out(level);
        mipmap->size += level->size;
    }
    return CUDA_SUCCESS;
}

void mipmap_place(CUmipmappedArray mipmap, CUdeviceptr address) {
    mipmap->address = address;
    for (unsigned i = 0; i < mipmap->level_count; i++) {
        array_place(mipmap->levels[i], address);
        address += address != 0 ? mipmap->levels[i]->size : 0;
    }
}

static void delete_mipmap(struct CUmipmappedArray_st *mipmap) {
    for (unsigned i = 0; i < mipmap->level_count; i++)
        delete_array(mipmap->levels[i]);
    array_unmap_all(&mipmap->mappings);
    handle_delete(&mipmaps, mipmap);
}

CUresult mipmap_over(struct CUctx_st *context, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels,
                     CUdeviceptr address, CUmipmappedArray *out) {
    struct CUmipmappedArray_st *mipmap;
    unsigned limit;
    CUresult ret;

    TRY(check(descriptor));
    limit = level_limit(descriptor);
    REQUIRE(array_format(descriptor->Format)->plane_count == 0 || levels == 1, CUDA_ERROR_INVALID_VALUE);
    mipmap = handle_new(&mipmaps);
    REQUIRE(mipmap != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    mipmap->context = context;
    mipmap->borrowed = true;
    ret = make_levels(mipmap, descriptor, levels < limit ? levels : limit);
    if (ret != CUDA_SUCCESS) {
        delete_mipmap(mipmap);
        return ret;
    }
    mipmap_place(mipmap, address);
    *out = mipmap;
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc,
                                unsigned int numMipmapLevels) {
    CUmipmappedArray mipmap;
    CUdeviceptr address = 0;
    CUresult ret = CUDA_SUCCESS;

    REQUIRE_CONTEXT(context);
    REQUIRE(pHandle != NULL && pMipmappedArrayDesc != NULL && numMipmapLevels != 0, CUDA_ERROR_INVALID_VALUE);
    TRY(mipmap_over(context, pMipmappedArrayDesc, numMipmapLevels, 0, &mipmap));
    mipmap->borrowed = false;
    if ((pMipmappedArrayDesc->Flags & ARRAY_UNBACKED) == 0)
        ret = heap_alloc(context, mipmap->size, PACK_DEVICE, &address);
    if (ret != CUDA_SUCCESS) {
        delete_mipmap(mipmap);
        return ret;
    }
    mipmap_place(mipmap, address);
    *pHandle = mipmap;
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayGetLevel(CUarray *pLevelArray, CUmipmappedArray hMipmappedArray, unsigned int level) {
    REQUIRE_MIPMAP(hMipmappedArray);
    REQUIRE(pLevelArray != NULL && level < hMipmappedArray->level_count, CUDA_ERROR_INVALID_VALUE);
    *pLevelArray = hMipmappedArray->levels[level];
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray) {
    REQUIRE_MIPMAP(hMipmappedArray);
    release_memory(hMipmappedArray->context, hMipmappedArray->address, hMipmappedArray->borrowed);
    delete_mipmap(hMipmappedArray);
    return CUDA_SUCCESS;
}

/* Their memory goes with the context's other allocations. */
static void delete_array_of(void *element, void *context) {
    CUarray array = element;

    if (array->context == context && array->of == NULL && array->plane_of == NULL)
        delete_array(array);
}

static void delete_mipmap_of(void *element, void *context) {
    if (((CUmipmappedArray)element)->context == context)
        delete_mipmap(element);
}

void arrays_context_gone(struct CUctx_st *context) {
    handle_each(&arrays, delete_array_of, context);
    handle_each(&mipmaps, delete_mipmap_of, context);
}
