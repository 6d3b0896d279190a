/* Images with damage: bits flipped, sizes that are not so, ends missing. As far as an offset leads, nothing behind an image can
 * be read. */
#include "crowd.h"
#include "families/images.h"
#include "worker.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define FUNCTIONS(X)                                                                                                   \
    X(cuModuleLoadData, "cuModuleLoadData", 2000)                                                                      \
    X(cuModuleLoadFatBinary, "cuModuleLoadFatBinary", 2000)                                                            \
    X(cuModuleUnload, "cuModuleUnload", 2000)                                                                          \
    X(cuModuleGetFunction, "cuModuleGetFunction", 2000)                                                                \
    X(cuLibraryLoadData, "cuLibraryLoadData", 12000)                                                                   \
    X(cuLibraryUnload, "cuLibraryUnload", 12000)
FAMILY_FUNCTIONS(FUNCTIONS)

#define PAGE ((uint64_t)4096)
#define BEHIND ((uint64_t)1 << 40) /* where the mappings of other threads would come and go */

enum { MODULES = 200, WAY_MODULE = 0, WAY_LIBRARY = 1 };

static bool make_image(struct call *call, struct program *program) {
    uint64_t *random = &call->random;
    const struct program_wish wish = {
        .data_most = crowd_size(call), .managed = random_once_in(random, 4), .prefix = ""};
    struct program first = {0}, second = {0};
    switch (random_below(random, 5)) {
    case 0:
        return program_cubin(random, &wish, program);
    case 1:
        return program_compressed(1 + random_below(random, 48 * MIB), program);
    case 2:
        return program_ptx(random, &wish, &first) && program_cubin(random, &wish, &second) &&
               program_fatbin(&first, &second, program);
    default:
        return program_ptx(random, &wish, program);
    }
}

/* An image in pages of its own, behind which nothing can be read. */
struct placed {
    char *map, *bytes;
    size_t mapped, size;
};

static bool place(const struct program *program, struct placed *placed) {
    size_t pages = (size_t)rounded(program->size, PAGE);
    placed->mapped = pages + BEHIND;
    placed->map = mmap(NULL, placed->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (placed->map == MAP_FAILED)
        return false;
    if (mprotect(placed->map, pages, PROT_READ | PROT_WRITE) != 0) {
        munmap(placed->map, placed->mapped);
        return false;
    }
    placed->size = program->size;
    placed->bytes = placed->map + (pages - program->size) / 8 * 8;
    memcpy(placed->bytes, program->bytes, program->size);
    return true;
}

/* The last byte of text stays what ends it. */
static void damage(uint64_t *random, struct placed *placed) {
    static const uint64_t odd[] = {0, 1, 0x7f, 0xff, 0xffff, 0x7fffffff, 0xffffffff, UINT64_MAX, INT64_MAX, 1 << 20};
    unsigned count = (unsigned)random_below(random, 1 + random_below(random, 12));
    size_t end = placed->size - 1, head = end < 256 ? end : 256;
    for (unsigned i = 0; i < count && end > 16; i++) {
        size_t at = (size_t)random_below(random, random_once_in(random, 2) ? head : end);
        uint64_t value = odd[random_below(random, sizeof odd / sizeof odd[0])];
        size_t width = (size_t)1 << random_below(random, 4);
        if (random_once_in(random, 2))
            placed->bytes[at] = (char)(placed->bytes[at] ^ (1 << random_below(random, 8)));
        else if (at / width * width + width <= end)
            memcpy(placed->bytes + at / width * width, &value, width);
    }
}

static void load(struct call *call, struct placed *placed) {
    struct {
        int magic, version;
        const void *data;
        const void *filename;
    } wrapper = {0x466243b1, 1, placed->bytes, NULL};
    CUmodule module = NULL;
    CUlibrary library = NULL;
    unsigned way = (unsigned)random_below(&call->random, 4);
    if (way == 0) {
        if (crowd_did(call, cu.cuLibraryLoadData(&library, placed->bytes, NULL, NULL, 0, NULL, NULL, 0)) &&
            !crowd_keep(call, KIND_CROWD_MODULE, (uintptr_t)library, WAY_LIBRARY, 0))
            cu.cuLibraryUnload(library);
        return;
    }
    if (crowd_did(call, way == 1 ? cu.cuModuleLoadFatBinary(&module, &wrapper)
                                 : cu.cuModuleLoadData(&module, placed->bytes)) &&
        !crowd_keep(call, KIND_CROWD_MODULE, (uintptr_t)module, WAY_MODULE, 0))
        cu.cuModuleUnload(module);
}

static void load_damaged_now(struct call *call) {
    struct program program = {0};
    struct placed placed = {0};
    if (!crowd_enter(call) || objects_count(KIND_CROWD_MODULE) >= MODULES || !make_image(call, &program))
        return;
    if (place(&program, &placed)) {
        damage(&call->random, &placed);
        say(call, "loading %zu bytes with damage", placed.size);
        load(call, &placed);
        munmap(placed.map, placed.mapped);
    }
    program_free(&program);
}

static void load_damaged(struct call *call) {
    crowd_work_begin();
    load_damaged_now(call);
    crowd_work_end();
}

static void use_now(struct call *call) {
    struct object object;
    CUfunction function = NULL;
    if (!crowd_enter(call) || !object_take(&call->random, KIND_CROWD_MODULE, -1, &object))
        return;
    if (object.other == WAY_MODULE)
        crowd_did(call, cu.cuModuleGetFunction(&function, (CUmodule)(uintptr_t)object.handle, "k0"));
    object_put(&object);
}

static void use(struct call *call) {
    crowd_work_begin();
    use_now(call);
    crowd_work_end();
}

static void unload_now(struct call *call) {
    struct object object;
    if (!crowd_enter(call) || !object_take(&call->random, KIND_CROWD_MODULE, -1, &object))
        return;
    say(call, "unloading");
    crowd_did(call, object.other == WAY_MODULE ? cu.cuModuleUnload((CUmodule)(uintptr_t)object.handle)
                                               : cu.cuLibraryUnload((CUlibrary)(uintptr_t)object.handle));
}

static void unload(struct call *call) {
    crowd_work_begin();
    unload_now(call);
    crowd_work_end();
}

static const struct operation operations[] = {
    {"crowd_image.load", 24, load_damaged, "cuModuleLoadData cuModuleLoadFatBinary cuLibraryLoadData", false, false},
    {"crowd_image.use", 6, use, "cuModuleGetFunction", false, false},
    {"crowd_image.unload", 10, unload, "cuModuleUnload cuLibraryUnload", false, false},
    {0},
};

const struct family family_crowd_image = {"crowd_image", functions, operations};
