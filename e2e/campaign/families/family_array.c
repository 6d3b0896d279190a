/* Arrays and mipmapped arrays: of every format and shape, with memory of their own and without. */
#include "family.h"
#include "worker.h"

#define FUNCTIONS(X)                                                                                                   \
    X(cuArrayCreate_v2, "cuArrayCreate", 3020)                                                                         \
    X(cuArray3DCreate_v2, "cuArray3DCreate", 3020)                                                                     \
    X(cuArrayDestroy, "cuArrayDestroy", 2000)                                                                          \
    X(cuArray3DGetDescriptor_v2, "cuArray3DGetDescriptor", 3020)                                                       \
    X(cuArrayGetMemoryRequirements, "cuArrayGetMemoryRequirements", 11060)                                             \
    X(cuArrayGetPlane, "cuArrayGetPlane", 11020)                                                                       \
    X(cuMipmappedArrayCreate, "cuMipmappedArrayCreate", 5000)                                                          \
    X(cuMipmappedArrayDestroy, "cuMipmappedArrayDestroy", 5000)                                                        \
    X(cuMipmappedArrayGetLevel, "cuMipmappedArrayGetLevel", 5000)                                                      \
    X(cuMipmappedArrayGetMemoryRequirements, "cuMipmappedArrayGetMemoryRequirements", 11060)
FAMILY_FUNCTIONS(FUNCTIONS)

#define UNBACKED ((unsigned)(CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))

enum { ARRAYS_MAX = 150 };

/* ---- What is asked for ---- */

struct format {
    CUarray_format format;
    unsigned channels;    /* 0: 1, 2 or 4 */
    unsigned texel_bytes; /* roughly, with 4 channels where there is a choice */
    bool pairs, planes;   /* even sides; planes are for 2D alone */
};

static const struct format formats[] = {
    {CU_AD_FORMAT_UNSIGNED_INT8, 0, 4, false, false},
    {CU_AD_FORMAT_SIGNED_INT16, 0, 8, false, false},
    {CU_AD_FORMAT_HALF, 0, 8, false, false},
    {CU_AD_FORMAT_FLOAT, 0, 16, false, false},
    {CU_AD_FORMAT_UNSIGNED_INT32, 0, 16, false, false},
    {CU_AD_FORMAT_UNORM_INT8X1, 1, 1, false, false},
    {CU_AD_FORMAT_UNORM_INT8X4, 4, 4, false, false},
    {CU_AD_FORMAT_SNORM_INT16X4, 4, 8, false, false},
    {CU_AD_FORMAT_BC1_UNORM, 4, 1, false, false},
    {CU_AD_FORMAT_BC4_SNORM, 1, 1, false, false},
    {CU_AD_FORMAT_BC6H_UF16, 3, 1, false, false},
    {CU_AD_FORMAT_BC7_UNORM_SRGB, 4, 1, false, false},
    {CU_AD_FORMAT_YUY2, 2, 2, true, false},
    {CU_AD_FORMAT_Y216, 2, 4, true, false},
    {CU_AD_FORMAT_AYUV, 4, 4, false, false},
    {CU_AD_FORMAT_Y416, 4, 8, false, false},
    {CU_AD_FORMAT_NV12, 3, 2, true, true},
    {CU_AD_FORMAT_P016, 3, 4, true, true},
    {CU_AD_FORMAT_P216, 3, 4, true, true},
    {CU_AD_FORMAT_Y444_PLANAR8, 3, 3, true, true},
    {CU_AD_FORMAT_Y444_PLANAR10, 3, 6, true, true},
};

enum shape { LINE, PLANE, SOLID, LINES, PLANES, CUBE, CUBES, SHAPES };

static size_t between(uint64_t value, size_t least, size_t most) {
    return value < least ? least : value > most ? most : (size_t)value;
}

/* Sides of a shape that holds about so many texels. */
static void choose_sides(uint64_t *random, enum shape shape, uint64_t texels, CUDA_ARRAY3D_DESCRIPTOR *d) {
    size_t width = 1 + random_below(random, 4096);
    switch (shape) {
    case LINE:
        d->Width = between(texels, 1, 1 << 17);
        break;
    case LINES:
        d->Width = between(width, 1, 32768);
        d->Depth = between(texels / d->Width, 1, 2048);
        break;
    case PLANE:
        /* With whole rows of tiles, so that what is left of a claim can be met exactly. */
        d->Width = random_once_in(random, 2) ? 4096 : width;
        d->Height = between(texels / d->Width, 1, 65536);
        break;
    case SOLID:
    case PLANES:
        d->Width = between(width / 8, 1, 512);
        d->Height = 1 + random_below(random, 512);
        d->Depth = between(texels / (d->Width * d->Height), 1, 2048);
        break;
    default:
        d->Width = d->Height = between(width / 4, 1, 1024);
        d->Depth = shape == CUBE ? 6 : 6 * between(texels / (6 * d->Width * d->Width), 1, 300);
        break;
    }
}

static unsigned shape_flags(enum shape shape) {
    return (shape == LINES || shape == PLANES || shape == CUBES ? CUDA_ARRAY3D_LAYERED : 0) |
           (shape == CUBE || shape == CUBES ? CUDA_ARRAY3D_CUBEMAP : 0);
}

static CUDA_ARRAY3D_DESCRIPTOR choose(struct call *call, bool flat) {
    static const unsigned uses[] = {0, 0, CUDA_ARRAY3D_SURFACE_LDST, CUDA_ARRAY3D_COLOR_ATTACHMENT};
    uint64_t *random = &call->random;
    const struct format *format = &formats[random_below(random, sizeof formats / sizeof formats[0])];
    enum shape shape = format->planes ? PLANE : (enum shape)random_below(random, flat ? 2 : SHAPES);
    CUDA_ARRAY3D_DESCRIPTOR d = {.Format = format->format, .NumChannels = format->channels};
    if (format->channels == 0)
        d.NumChannels = random_once_in(random, 2) ? 4 : 1 + (unsigned)random_below(random, 2);
    choose_sides(random, shape, random_size(call) / format->texel_bytes, &d);
    if (format->pairs) {
        d.Width = rounded(d.Width, 2);
        d.Height = rounded(d.Height, 2);
    }
    if ((shape == CUBE || shape == CUBES) && d.Width != d.Height)
        d.Height = d.Width;
    d.Flags = shape_flags(shape);
    if (!flat)
        d.Flags |= uses[random_below(random, 4)];
    if (!flat && d.Height != 0 && random_once_in(random, 10))
        d.Flags |= CUDA_ARRAY3D_SPARSE;
    else if (!flat && random_once_in(random, 10))
        d.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    return d;
}

/* ---- What it takes: the driver says so of an array like it whose memory is still to come ---- */

static uint64_t ask_array(struct call *call, const CUDA_ARRAY3D_DESCRIPTOR *wanted) {
    CUDA_ARRAY3D_DESCRIPTOR like = *wanted;
    CUDA_ARRAY_MEMORY_REQUIREMENTS needed = {0};
    CUarray array = NULL;
    like.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    if (expect(call, CALL(cu.cuArray3DCreate_v2(&array, &like)), CUDA_SUCCESS, "a deferred array")) {
        expect(call, CALL(cu.cuArrayGetMemoryRequirements(&needed, array, call->device)), CUDA_SUCCESS,
               "cuArrayGetMemoryRequirements");
        expect(call, CALL(cu.cuArrayDestroy(array)), CUDA_SUCCESS, "cuArrayDestroy");
    }
    return needed.size;
}

static uint64_t ask_mipmap(struct call *call, const CUDA_ARRAY3D_DESCRIPTOR *wanted, unsigned levels) {
    CUDA_ARRAY3D_DESCRIPTOR like = *wanted;
    CUDA_ARRAY_MEMORY_REQUIREMENTS needed = {0};
    CUmipmappedArray mipmap = NULL;
    like.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    if (expect(call, CALL(cu.cuMipmappedArrayCreate(&mipmap, &like, levels)), CUDA_SUCCESS, "a deferred one")) {
        expect(call, CALL(cu.cuMipmappedArrayGetMemoryRequirements(&needed, mipmap, call->device)), CUDA_SUCCESS,
               "cuMipmappedArrayGetMemoryRequirements");
        expect(call, CALL(cu.cuMipmappedArrayDestroy(mipmap)), CUDA_SUCCESS, "cuMipmappedArrayDestroy");
    }
    return needed.size;
}

/* Of one block the driver does not say whether it would share it with others. */
static int64_t least_of(uint64_t needed) {
    return needed <= BLOCK ? 0 : (int64_t)needed;
}

static void describe(struct call *call, const char *what, const CUDA_ARRAY3D_DESCRIPTOR *d) {
    say(call, "%s(%zu x %zu x %zu, %u of format %#x, flags %#x) on %d", what, d->Width, d->Height, d->Depth,
        d->NumChannels, (unsigned)d->Format, d->Flags, call->device);
}

static CUresult release_array(const struct object *object) {
    return cu.cuArrayDestroy((CUarray)(uintptr_t)object->handle);
}

static CUresult release_mipmap(const struct object *object) {
    return cu.cuMipmappedArrayDestroy((CUmipmappedArray)(uintptr_t)object->handle);
}

static CUresult release_either(const struct object *object) {
    return object->kind == KIND_ARRAY ? release_array(object) : release_mipmap(object);
}

static void keep(struct call *call, enum kind kind, uintptr_t handle, uint64_t needed, unsigned flags) {
    struct object object = {.handle = handle,
                            .size = needed,
                            .other = flags,
                            .slack = needed <= BLOCK ? needed : 0, /* it counts a block, and may share one */
                            .context = call->context->serial,
                            .device = (int16_t)call->device,
                            .gpu = (int16_t)call->gpu,
                            .kind = (uint8_t)kind};
    grows(call, least_of(needed), (int64_t)needed);
    say(call, " -> %#llx", (unsigned long long)handle);
    if (objects_count(kind) < ARRAYS_MAX && object_put(&object))
        return;
    grows(call, -(int64_t)BLOCK, (int64_t)BLOCK);
    expect(call, CALL(release_either(&object)), CUDA_SUCCESS, "destroying it again");
}

/* ---- Operations ---- */

static void create(struct call *call) {
    CUarray array = NULL;
    if (!need_context(call))
        return;
    CUDA_ARRAY3D_DESCRIPTOR wanted = choose(call, false);
    describe(call, "cuArray3DCreate_v2", &wanted);
    uint64_t needed = (wanted.Flags & UNBACKED) != 0 ? 0 : ask_array(call, &wanted);
    needs(call, needed);
    if (call->desk->outcome != OUTCOME_WRONG && judged(call, CALL(cu.cuArray3DCreate_v2(&array, &wanted))))
        keep(call, KIND_ARRAY, (uintptr_t)array, needed, wanted.Flags);
}

/* Without depth or flags. */
static void create_flat(struct call *call) {
    CUarray array = NULL;
    if (!need_context(call))
        return;
    CUDA_ARRAY3D_DESCRIPTOR wanted = choose(call, true);
    CUDA_ARRAY_DESCRIPTOR flat = {
        .Width = wanted.Width, .Height = wanted.Height, .Format = wanted.Format, .NumChannels = wanted.NumChannels};
    describe(call, "cuArrayCreate_v2", &wanted);
    uint64_t needed = (wanted.Flags & UNBACKED) != 0 ? 0 : ask_array(call, &wanted);
    needs(call, needed);
    if (call->desk->outcome != OUTCOME_WRONG && judged(call, CALL(cu.cuArrayCreate_v2(&array, &flat))))
        keep(call, KIND_ARRAY, (uintptr_t)array, needed, wanted.Flags);
}

static bool of_planes(CUarray_format format) {
    for (unsigned i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (formats[i].format == format)
            return formats[i].planes;
    return false;
}

static void create_mipmap(struct call *call) {
    CUmipmappedArray mipmap = NULL;
    if (!need_context(call))
        return;
    CUDA_ARRAY3D_DESCRIPTOR wanted = choose(call, false);
    unsigned levels = of_planes(wanted.Format) ? 1 : 1 + (unsigned)random_below(&call->random, 14);
    bool pairs = wanted.Format == CU_AD_FORMAT_YUY2 || wanted.Format == CU_AD_FORMAT_Y216;
    levels = pairs ? 1 : levels;
    describe(call, "cuMipmappedArrayCreate", &wanted);
    uint64_t needed = (wanted.Flags & UNBACKED) != 0 ? 0 : ask_mipmap(call, &wanted, levels);
    needs(call, needed);
    if (call->desk->outcome != OUTCOME_WRONG && judged(call, CALL(cu.cuMipmappedArrayCreate(&mipmap, &wanted, levels))))
        keep(call, KIND_MIPMAP, (uintptr_t)mipmap, needed, wanted.Flags);
}

static void destroy(struct call *call) {
    struct object object;
    enum kind kind = random_once_in(&call->random, 3) ? KIND_MIPMAP : KIND_ARRAY;
    if (!need_context(call) || !object_take(&call->random, kind, -1, &object))
        return;
    call->gpu = object.gpu;
    say(call, "destroying %#llx of %llu", (unsigned long long)object.handle, (unsigned long long)object.size);
    if (expect(call, CALL(release_either(&object)), CUDA_SUCCESS, "destroying an array"))
        grows(call, -(int64_t)object.size, -least_of(object.size));
}

/* Parts of an array take nothing of their own. */
static void look(struct call *call) {
    struct object object;
    CUarray array = NULL;
    CUDA_ARRAY3D_DESCRIPTOR is = {0};
    enum kind kind = random_once_in(&call->random, 2) ? KIND_MIPMAP : KIND_ARRAY;
    if (!need_context(call) || !object_take_in(&call->random, kind, call->context->serial, &object))
        return;
    grows(call, 0, 0);
    if (kind == KIND_MIPMAP) {
        say(call, "cuMipmappedArrayGetLevel");
        CUmipmappedArray mipmap = (CUmipmappedArray)(uintptr_t)object.handle;
        expect(call, CALL(cu.cuMipmappedArrayGetLevel(&array, mipmap, 0)), CUDA_SUCCESS, "cuMipmappedArrayGetLevel");
    } else {
        array = (CUarray)(uintptr_t)object.handle;
    }
    say(call, " cuArray3DGetDescriptor_v2");
    expect(call, CALL(cu.cuArray3DGetDescriptor_v2(&is, array)), CUDA_SUCCESS, "cuArray3DGetDescriptor");
    if (kind == KIND_ARRAY && of_planes(is.Format)) {
        say(call, " cuArrayGetPlane");
        expect(call, CALL(cu.cuArrayGetPlane(&array, array, 1)), CUDA_SUCCESS, "cuArrayGetPlane");
    }
    object_put(&object);
}

__attribute__((constructor)) static void release_functions(void) {
    releases[KIND_ARRAY] = release_array;
    releases[KIND_MIPMAP] = release_mipmap;
}

static const struct operation operations[] = {
    {"array.create", 16, create, "cuArray3DCreate_v2 cuArrayDestroy cuArrayGetMemoryRequirements", false, false},
    {"array.flat", 10, create_flat, "cuArrayCreate_v2 cuArrayDestroy cuArrayGetMemoryRequirements", false, false},
    {"array.mipmap", 10, create_mipmap,
     "cuMipmappedArrayCreate cuMipmappedArrayDestroy cuMipmappedArrayGetMemoryRequirements", false, false},
    {"array.destroy", 40, destroy, "cuArrayDestroy cuMipmappedArrayDestroy", false, false},
    {"array.look", 4, look, "cuArray3DGetDescriptor_v2 cuMipmappedArrayGetLevel cuArrayGetPlane", false, false},
    {0},
};

const struct family family_array = {"array", functions, operations};
