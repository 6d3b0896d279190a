#include "module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "heap.h"
#include "image.h"

/* So much code of a context's modules finds room in what the context itself takes from the GPU. */
#define INCLUDED_CODE_BYTES (16 * MIB)
#define MAX_SHARED_BYTES 232448
#define DEFAULT_SHARED_BYTES 49152

struct global {
    struct global *next;
    char *name;
    CUdeviceptr address;
    uint64_t size;
};

struct CUmod_st {
    struct handle handle;
    struct CUctx_st *context;
    struct CUlib_st *library; /* that it was loaded from, or NULL */
    struct image image;       /* of a library's module, the library has it */
    struct function *functions;
    struct global *globals;
};

struct CUlib_st {
    struct handle handle;
    struct image image;
    struct function *kernels;
};

static struct handle_table modules = HANDLE_TABLE(7, 1 << 18);
static struct handle_table libraries = HANDLE_TABLE(6, 1 << 18);
static struct handle_table functions = HANDLE_TABLE(6, 1 << 22);
_Static_assert(sizeof(struct CUmod_st) <= 1 << 7, "a module must fit into its element");
_Static_assert(sizeof(struct CUlib_st) <= 1 << 6, "a library must fit into its element");
_Static_assert(sizeof(struct function) <= 1 << 6, "a function must fit into its element");

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* ---- Functions ---- */

/* A kernel whose name contains spin_<N>us or spin_<N>ms takes so long; any other as long as kernels take. */
static uint64_t duration_of(const char *name) {
    const char *spin = strstr(name, "spin_");
    char *unit;
    uint64_t n;

    if (spin == NULL || spin[5] < '0' || spin[5] > '9')
        return driver->kernel_ns;
    n = strtoull(spin + 5, &unit, 10);
    if (strncmp(unit, "us", 2) == 0)
        return n * 1000;
    return strncmp(unit, "ms", 2) == 0 ? n * 1000000 : driver->kernel_ns;
}

/* Under the mutex. The same name gets the same handle each time. */
static CUresult get_function(const struct image *image, struct function **list, const char *name,
                             struct function **out) {
    struct function *function;

    for (function = *list; function != NULL; function = function->next) {
        if (strcmp(function->name, name) == 0) {
            *out = function;
            return CUDA_SUCCESS;
        }
    }
    REQUIRE(image_has_kernel(image, name), CUDA_ERROR_NOT_FOUND);
    function = handle_new(&functions);
    REQUIRE(function != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    function->name = strdup(name);
    if (function->name == NULL) {
        handle_delete(&functions, function);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    function->duration_ns = duration_of(name);
    function->dynamic_shared_bytes = DEFAULT_SHARED_BYTES;
    function->next = *list;
    *list = function;
    *out = function;
    return CUDA_SUCCESS;
}

static void delete_functions(struct function *function) {
    while (function != NULL) {
        struct function *next = function->next;

        free(function->name);
        handle_delete(&functions, function);
        function = next;
    }
}

CUresult function_find(const struct CUctx_st *context, CUfunction handle, struct function **function) {
    struct function *found = (struct function *)(void *)handle;

    REQUIRE(handle_valid(&functions, found), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(found->module == NULL || found->module->context == context, CUDA_ERROR_INVALID_HANDLE);
    *function = found;
    return CUDA_SUCCESS;
}

/* ---- Code takes memory of the GPU ---- */

static uint64_t code_beyond_included(uint64_t bytes) {
    return bytes > INCLUDED_CODE_BYTES ? round_up(bytes - INCLUDED_CODE_BYTES, SIM_GRANULARITY) : 0;
}

static CUresult take_code_memory(struct CUctx_st *context, uint64_t bytes) {
    uint64_t needed = code_beyond_included(context->code_bytes + bytes);

    if (needed > context->code_reserved_bytes)
        TRY(heap_reserve_physical(context_gpu(context), needed - context->code_reserved_bytes));
    else
        needed = context->code_reserved_bytes;
    context->code_reserved_bytes = needed;
    context->code_bytes += bytes;
    return CUDA_SUCCESS;
}

static void give_code_memory(struct CUctx_st *context, uint64_t bytes) {
    uint64_t needed;

    context->code_bytes -= bytes;
    needed = code_beyond_included(context->code_bytes);
    sim_release(context_gpu(context), context->code_reserved_bytes - needed);
    context->code_reserved_bytes = needed;
}

/* ---- Modules ---- */

static const struct image *module_image(const struct CUmod_st *module) {
    return module->library != NULL ? &module->library->image : &module->image;
}

/* Under the mutex. Takes the image over, unless it is a library's. */
static CUresult module_new(struct CUctx_st *context, const struct image *image, struct CUlib_st *library,
                           CUmodule *out) {
    struct CUmod_st *module;
    CUresult ret = take_code_memory(context, image->size);

    if (ret != CUDA_SUCCESS)
        return ret;
    module = handle_new(&modules);
    if (module == NULL) {
        give_code_memory(context, image->size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    module->context = context;
    module->library = library;
    if (library == NULL)
        module->image = *image;
    *out = module;
    return CUDA_SUCCESS;
}

/* Under the mutex. With the context, its globals' memory goes by itself. */
static void module_delete(struct CUmod_st *module, bool context_goes) {
    give_code_memory(module->context, module_image(module)->size);
    delete_functions(module->functions);
    for (struct global *global = module->globals, *next; global != NULL; global = next) {
        next = global->next;
        if (!context_goes)
            heap_free(global->address);
        free(global->name);
        free(global);
    }
    image_free(&module->image);
    handle_delete(&modules, module);
}

static CUresult load(CUmodule *out, const void *data) {
    struct image image;
    CUresult ret;

    REQUIRE_CONTEXT(context);
    REQUIRE(out != NULL && data != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(image_read(data, &image));
    pthread_mutex_lock(&mutex);
    ret = module_new(context, &image, NULL, out);
    pthread_mutex_unlock(&mutex);
    if (ret != CUDA_SUCCESS)
        image_free(&image);
    return ret;
}

/* A file's contents, with zeros after them; free() it. */
static CUresult read_file(const char *path, char **contents) {
    size_t size = 0, capacity = 65536, got;
    FILE *file = fopen(path, "re");
    char *buffer;

    REQUIRE(file != NULL, CUDA_ERROR_FILE_NOT_FOUND);
    buffer = malloc(capacity + 64);
    while (buffer != NULL && (got = fread(buffer + size, 1, capacity - size, file)) > 0) {
        size += got;
        if (size == capacity) {
            char *grown = realloc(buffer, 2 * capacity + 64);

            if (grown == NULL)
                free(buffer);
            buffer = grown;
            capacity *= 2;
        }
    }
    fclose(file);
    REQUIRE(buffer != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    memset(buffer + size, 0, 64);
    *contents = buffer;
    return CUDA_SUCCESS;
}

CUresult cuModuleLoad(CUmodule *module, const char *fname) {
    char *contents;
    CUresult ret;

    REQUIRE_INITIALISED();
    REQUIRE(module != NULL && fname != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(read_file(fname, &contents));
    ret = load(module, contents);
    free(contents);
    return ret;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    return load(module, image);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions, CUjit_option *options,
                            void **optionValues) {
    REQUIRE(numOptions == 0 || (options != NULL && optionValues != NULL), CUDA_ERROR_INVALID_VALUE);
    return load(module, image);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin) {
    return load(module, fatCubin);
}

CUresult cuModuleUnload(CUmodule hmod) {
    REQUIRE_CONTEXT(context);
    REQUIRE(handle_valid(&modules, hmod) && hmod->context == context && hmod->library == NULL,
            CUDA_ERROR_INVALID_HANDLE);
    context_wait(context);
    pthread_mutex_lock(&mutex);
    module_delete(hmod, false);
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) {
    REQUIRE_INITIALISED();
    REQUIRE(mode != NULL, CUDA_ERROR_INVALID_VALUE);
    *mode = CU_MODULE_EAGER_LOADING;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name) {
    struct function *function;
    CUresult ret;

    REQUIRE_INITIALISED();
    REQUIRE(hfunc != NULL && name != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(handle_valid(&modules, hmod), CUDA_ERROR_INVALID_HANDLE);
    pthread_mutex_lock(&mutex);
    ret = get_function(module_image(hmod), &hmod->functions, name, &function);
    if (ret == CUDA_SUCCESS)
        function->module = hmod;
    pthread_mutex_unlock(&mutex);
    if (ret == CUDA_SUCCESS)
        *hfunc = (CUfunction)(void *)function;
    return ret;
}

CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule mod) {
    REQUIRE_INITIALISED();
    REQUIRE(count != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(handle_valid(&modules, mod), CUDA_ERROR_INVALID_HANDLE);
    *count = image_kernel_count(module_image(mod));
    return CUDA_SUCCESS;
}

/* Under the mutex. A global's memory is taken when it is first asked for. */
static CUresult get_global(struct CUmod_st *module, const char *name, struct global **out) {
    struct global *global;
    CUresult ret;

    for (global = module->globals; global != NULL; global = global->next) {
        if (strcmp(global->name, name) == 0) {
            *out = global;
            return CUDA_SUCCESS;
        }
    }
    global = calloc(1, sizeof(*global));
    REQUIRE(global != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    global->name = strdup(name);
    global->size = image_global_bytes(module_image(module), name);
    ret = global->name == NULL ? CUDA_ERROR_OUT_OF_MEMORY
          : global->size == 0  ? CUDA_ERROR_NOT_FOUND
                               : heap_alloc(module->context, global->size, PACK_DEVICE, &global->address);
    if (ret != CUDA_SUCCESS) {
        free(global->name);
        free(global);
        return ret;
    }
    global->next = module->globals;
    module->globals = global;
    *out = global;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod, const char *name) {
    struct global *global;
    CUresult ret;

    REQUIRE_INITIALISED();
    REQUIRE(name != NULL && (dptr != NULL || bytes != NULL), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(handle_valid(&modules, hmod), CUDA_ERROR_INVALID_HANDLE);
    pthread_mutex_lock(&mutex);
    ret = get_global(hmod, name, &global);
    pthread_mutex_unlock(&mutex);
    if (ret != CUDA_SUCCESS)
        return ret;
    if (dptr != NULL)
        *dptr = global->address;
    if (bytes != NULL)
        *bytes = global->size;
    return CUDA_SUCCESS;
}

/* Contexts whose pointers have 32 bits are no more: an address that does not fit is an error. */
CUresult cuModuleGetGlobal(CUdeviceptr_v1 *dptr, unsigned int *bytes, CUmodule hmod, const char *name) {
    CUdeviceptr address;
    size_t size;

    TRY(cuModuleGetGlobal_v2(&address, &size, hmod, name));
    REQUIRE(dptr == NULL || address <= UINT32_MAX, CUDA_ERROR_INVALID_VALUE);
    if (dptr != NULL)
        *dptr = (CUdeviceptr_v1)address;
    if (bytes != NULL)
        *bytes = (unsigned)size;
    return CUDA_SUCCESS;
}

static void delete_module_of(void *element, void *context) {
    if (((CUmodule)element)->context == context)
        module_delete(element, true);
}

void modules_context_gone(struct CUctx_st *context) {
    pthread_mutex_lock(&mutex);
    handle_each(&modules, delete_module_of, context);
    pthread_mutex_unlock(&mutex);
}

/* ---- Libraries: loaded once, a module in each context that uses them ---- */

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions, void **jitOptionsValues,
                           unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
                           unsigned int numLibraryOptions) {
    struct CUlib_st *fresh;
    struct image image;

    REQUIRE_INITIALISED();
    REQUIRE(library != NULL && code != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(numJitOptions == 0 || (jitOptions != NULL && jitOptionsValues != NULL), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(numLibraryOptions == 0 || libraryOptions != NULL, CUDA_ERROR_INVALID_VALUE);
    (void)libraryOptionValues;
    TRY(image_read(code, &image));
    fresh = handle_new(&libraries);
    if (fresh == NULL) {
        image_free(&image);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fresh->image = image;
    *library = fresh;
    return CUDA_SUCCESS;
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions,
                               void **jitOptionsValues, unsigned int numJitOptions, CUlibraryOption *libraryOptions,
                               void **libraryOptionValues, unsigned int numLibraryOptions) {
    char *contents;
    CUresult ret;

    REQUIRE_INITIALISED();
    REQUIRE(library != NULL && fileName != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(read_file(fileName, &contents));
    ret = cuLibraryLoadData(library, contents, jitOptions, jitOptionsValues, numJitOptions, libraryOptions,
                            libraryOptionValues, numLibraryOptions);
    free(contents);
    return ret;
}

static void delete_module_from(void *element, void *library) {
    if (((CUmodule)element)->library == library)
        module_delete(element, false);
}

CUresult cuLibraryUnload(CUlibrary library) {
    REQUIRE_INITIALISED();
    REQUIRE(handle_valid(&libraries, library), CUDA_ERROR_INVALID_HANDLE);
    pthread_mutex_lock(&mutex);
    handle_each(&modules, delete_module_from, library);
    delete_functions(library->kernels);
    image_free(&library->image);
    handle_delete(&libraries, library);
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name) {
    struct function *kernel;
    CUresult ret;

    REQUIRE_INITIALISED();
    REQUIRE(pKernel != NULL && name != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(handle_valid(&libraries, library), CUDA_ERROR_INVALID_HANDLE);
    pthread_mutex_lock(&mutex);
    ret = get_function(&library->image, &library->kernels, name, &kernel);
    if (ret == CUDA_SUCCESS)
        kernel->library = library;
    pthread_mutex_unlock(&mutex);
    if (ret == CUDA_SUCCESS)
        *pKernel = (CUkernel)(void *)kernel;
    return ret;
}

struct module_search {
    struct CUctx_st *context;
    struct CUlib_st *library;
    struct CUmod_st *found;
};

static void match_module(void *element, void *arg) {
    struct module_search *search = arg;
    struct CUmod_st *module = element;

    if (module->context == search->context && module->library == search->library)
        search->found = module;
}

/* Under the mutex. The library's module in the context, loaded if it is not yet. */
static CUresult library_module(struct CUctx_st *context, struct CUlib_st *library, CUmodule *module) {
    struct module_search search = {.context = context, .library = library};

    handle_each(&modules, match_module, &search);
    if (search.found == NULL)
        TRY(module_new(context, &library->image, library, &search.found));
    *module = search.found;
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetModule(CUmodule *pMod, CUlibrary library) {
    CUresult ret;

    REQUIRE_CONTEXT(context);
    REQUIRE(pMod != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(handle_valid(&libraries, library), CUDA_ERROR_INVALID_HANDLE);
    pthread_mutex_lock(&mutex);
    ret = library_module(context, library, pMod);
    pthread_mutex_unlock(&mutex);
    return ret;
}

CUresult cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel) {
    struct function *found = (struct function *)(void *)kernel;
    CUmodule module;

    REQUIRE_INITIALISED();
    REQUIRE(handle_valid(&functions, found) && found->library != NULL, CUDA_ERROR_INVALID_HANDLE);
    TRY(cuLibraryGetModule(&module, found->library));
    return cuModuleGetFunction(pFunc, module, found->name);
}

CUresult cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name) {
    CUmodule module;

    TRY(cuLibraryGetModule(&module, library));
    return cuModuleGetGlobal_v2(dptr, bytes, module, name);
}

/* ---- What a function can be asked ---- */

#define REQUIRE_FUNCTION(hfunc, function)                                                                              \
    struct function *function = (struct function *)(void *)(hfunc);                                                    \
    REQUIRE_INITIALISED();                                                                                             \
    REQUIRE(handle_valid(&functions, function), CUDA_ERROR_INVALID_HANDLE)

CUresult cuFuncGetAttribute(int *pi, CUfunction_attribute attrib, CUfunction hfunc) {
    static const int fixed[CU_FUNC_ATTRIBUTE_MAX] = {
        [CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024,
        [CU_FUNC_ATTRIBUTE_NUM_REGS] = 32,
        [CU_FUNC_ATTRIBUTE_PTX_VERSION] = 90,
        [CU_FUNC_ATTRIBUTE_BINARY_VERSION] = 90,
        [CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT] = -1,
    };

    REQUIRE_FUNCTION(hfunc, function);
    REQUIRE(pi != NULL && (int)attrib >= 0 && attrib < CU_FUNC_ATTRIBUTE_MAX, CUDA_ERROR_INVALID_VALUE);
    *pi = attrib == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ? function->dynamic_shared_bytes : fixed[attrib];
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value) {
    REQUIRE_FUNCTION(hfunc, function);
    if (attrib == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT)
        return value >= -1 && value <= 100 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    REQUIRE(attrib == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value >= 0 && value <= MAX_SHARED_BYTES,
            CUDA_ERROR_INVALID_VALUE);
    function->dynamic_shared_bytes = value;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config) {
    REQUIRE_FUNCTION(hfunc, function);
    REQUIRE((int)config >= 0 && config <= CU_FUNC_CACHE_PREFER_EQUAL, CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

CUresult cuFuncGetModule(CUmodule *hmod, CUfunction hfunc) {
    REQUIRE_FUNCTION(hfunc, function);
    REQUIRE(hmod != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(function->module != NULL, CUDA_ERROR_INVALID_HANDLE);
    *hmod = function->module;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetName(const char **name, CUfunction hfunc) {
    REQUIRE_FUNCTION(hfunc, function);
    REQUIRE(name != NULL, CUDA_ERROR_INVALID_VALUE);
    *name = function->name;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetName(const char **name, CUkernel hfunc) {
    REQUIRE_FUNCTION(hfunc, function);
    REQUIRE(name != NULL, CUDA_ERROR_INVALID_VALUE);
    *name = function->name;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, CUfunction func, int blockSize,
                                                     size_t dynamicSMemSize) {
    int by_threads, by_shared;

    REQUIRE_FUNCTION(func, function);
    REQUIRE(numBlocks != NULL && blockSize > 0, CUDA_ERROR_INVALID_VALUE);
    by_threads = blockSize <= 1024 ? 2048 / blockSize : 0;
    by_shared = dynamicSMemSize == 0 ? 32 : (int)(233472 / (dynamicSMemSize + 1024));
    *numBlocks = by_threads < by_shared ? by_threads : by_shared;
    if (*numBlocks > 32)
        *numBlocks = 32;
    return CUDA_SUCCESS;
}
