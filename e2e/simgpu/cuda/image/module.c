#include "module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/memory/heap.h"
#include "cuda/memory/managed.h"
#include "cuda/texture/reference.h"
#include "image.h"

/* So much code of a context's modules finds room in what the context itself takes from the GPU. */
#define INCLUDED_CODE_BYTES (16 * MIB)
#define MAX_SHARED_BYTES 232448
#define DEFAULT_SHARED_BYTES 49152

struct CUmod_st {
    struct handle handle;
    struct CUctx_st *context;
    struct CUlib_st *library; /* that it was loaded from, or NULL */
    struct CUmod_st *next;    /* of the library's modules */
    struct image image;       /* of a library's module, the library has it */
    struct function *functions;
    bool loaded;               /* has its memory */
    CUdeviceptr data, managed; /* its variables, 0: none */
};

struct CUlib_st {
    struct handle handle;
    struct image image;
    struct function *kernels;
    struct CUmod_st *modules;
};

static struct handle_table modules = HANDLE_TABLE(8, 1 << 18);
static struct handle_table libraries = HANDLE_TABLE(7, 1 << 18);
static struct handle_table functions = HANDLE_TABLE(7, 1 << 22);
_Static_assert(sizeof(struct CUmod_st) <= 1 << 8, "a module must fit into its element");
_Static_assert(sizeof(struct CUlib_st) <= 1 << 7, "a library must fit into its element");
_Static_assert(sizeof(struct function) <= 1 << 7, "a function must fit into its element");

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic unsigned with_variables; /* modules that have memory for variables */

/* Modules take their memory when something in them is first used, from CUDA 12.2 on; or, eagerly, when they are loaded. */
static bool lazy(void) {
    static _Atomic int mode; /* 0 while it is unknown */
    int known = atomic_load(&mode);

    if (known == 0) {
        const char *text = getenv("CUDA_MODULE_LOADING");

        known = CU_MODULE_EAGER_LOADING;
        if (text != NULL && strcmp(text, "LAZY") == 0 && driver_version() >= 11070)
            known = CU_MODULE_LAZY_LOADING;
        else if ((text == NULL || strcmp(text, "EAGER") != 0) && driver_version() >= 12020)
            known = CU_MODULE_LAZY_LOADING;
        atomic_store(&mode, known);
    }
    return known == CU_MODULE_LAZY_LOADING;
}

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
static CUresult get_function(struct image *image, struct function **list, const char *name, struct function **out) {
    const struct image_kernel *kernel;
    struct function *function;

    for (function = *list; function != NULL; function = function->next) {
        if (strcmp(function->name, name) == 0) {
            *out = function;
            return CUDA_SUCCESS;
        }
    }
    kernel = image_kernel(image, name);
    REQUIRE(kernel != NULL, CUDA_ERROR_NOT_FOUND);
    function = handle_new(&functions);
    REQUIRE(function != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    function->name = strdup(name);
    if (function->name == NULL) {
        handle_delete(&functions, function);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    function->duration_ns = duration_of(name);
    function->local_bytes = kernel->local_bytes;
    function->shared_bytes = kernel->shared_bytes;
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

const struct CUctx_st *function_context(CUfunction handle) {
    const struct function *found = (const struct function *)(const void *)handle;

    return handle_valid(&functions, found) && found->module != NULL ? found->module->context : NULL;
}

/* ---- Code takes memory of the GPU ---- */

static uint64_t code_beyond_included(uint64_t bytes) {
    return bytes > INCLUDED_CODE_BYTES ? round_up(bytes - INCLUDED_CODE_BYTES, SIM_GRANULARITY) : 0;
}

static CUresult take_code_memory(struct CUctx_st *context, uint64_t bytes) {
    uint64_t needed = code_beyond_included(context->code_bytes + bytes);

    if (needed > context->code_reserved_bytes)
        TRY(heap_reserve_physical(context_gpu(context), needed - context->code_reserved_bytes, &context->code_bytes));
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
    sim_release(context_gpu(context), context->code_reserved_bytes - needed, &context->code_bytes);
    context->code_reserved_bytes = needed;
}

/* ---- Modules ---- */

static struct image *module_image(struct CUmod_st *module) {
    return module->library != NULL ? &module->library->image : &module->image;
}

static uint64_t module_code(struct CUmod_st *module) {
    return module_image(module)->code_bytes + sim_topology()->own_code_bytes;
}

static CUresult take_variables(struct CUctx_st *context, const struct image *image, CUdeviceptr *data,
                               CUdeviceptr *managed) {
    CUresult ret = CUDA_SUCCESS;

    if (image->data_bytes != 0)
        TRY(heap_alloc(context, image->data_bytes, PACK_DEVICE, data));
    if (image->managed_bytes != 0)
        ret = heap_alloc(context, image->managed_bytes, PACK_MANAGED, managed);
    if (ret != CUDA_SUCCESS && *data != 0) {
        heap_free(*data);
        *data = 0;
    }
    return ret;
}

/* Under the mutex. Takes the memory of the module's code and variables, unless it has it. */
static CUresult module_load(struct CUmod_st *module) {
    const struct image *image = module_image(module);
    CUresult ret;

    if (module->loaded)
        return CUDA_SUCCESS;
    TRY(take_code_memory(module->context, module_code(module)));
    ret = take_variables(module->context, image, &module->data, &module->managed);
    if (ret != CUDA_SUCCESS) {
        give_code_memory(module->context, module_code(module));
        return ret;
    }
    module->loaded = true;
    if (module->data != 0 || module->managed != 0)
        atomic_fetch_add(&with_variables, 1);
    return CUDA_SUCCESS;
}

/* Under the mutex. With the context, its variables' memory goes by itself. */
static void module_give_memory(struct CUmod_st *module, bool context_goes) {
    if (!module->loaded)
        return;
    give_code_memory(module->context, module_code(module));
    if (module->data != 0 || module->managed != 0)
        atomic_fetch_sub(&with_variables, 1);
    if (!context_goes && module->data != 0)
        heap_free(module->data);
    if (!context_goes && module->managed != 0)
        heap_free(module->managed);
}

static void module_delete(struct CUmod_st *module, bool context_goes) {
    module_give_memory(module, context_goes);
    delete_functions(module->functions);
    references_module_gone(module);
    if (module->library != NULL) {
        struct CUmod_st **link = &module->library->modules;

        while (*link != module)
            link = &(*link)->next;
        *link = module->next;
    } else {
        image_free(&module->image);
    }
    handle_delete(&modules, module);
}

/* Under the mutex. Takes the image over, unless it is a library's. */
static CUresult module_new(struct CUctx_st *context, const struct image *image, struct CUlib_st *library,
                           CUmodule *out) {
    struct CUmod_st *module = handle_new(&modules);
    CUresult ret;

    REQUIRE(module != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    module->context = context;
    module->library = library;
    if (library == NULL) {
        module->image = *image;
    } else {
        module->next = library->modules;
        library->modules = module;
    }
    ret = lazy() ? CUDA_SUCCESS : module_load(module);
    if (ret != CUDA_SUCCESS) {
        module->image = (struct image){0}; /* the caller's still */
        module_delete(module, false);
        return ret;
    }
    *out = module;
    return CUDA_SUCCESS;
}

static void match_address(void *element, void *address) {
    struct CUmod_st *module = element;
    CUdeviceptr *wanted = address;

    if (module->loaded && *wanted != 0 && (*wanted == module->data || *wanted == module->managed))
        *wanted = 0;
}

bool module_holds(CUdeviceptr address) {
    if (atomic_load_explicit(&with_variables, memory_order_relaxed) == 0)
        return false;
    pthread_mutex_lock(&mutex);
    handle_each(&modules, match_address, &address);
    pthread_mutex_unlock(&mutex);
    return address == 0;
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

CUresult module_read_file(const char *path, char **contents, size_t *bytes) {
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
    if (bytes != NULL)
        *bytes = size;
    return CUDA_SUCCESS;
}

CUresult cuModuleLoad(CUmodule *module, const char *fname) {
    char *contents;
    CUresult ret;

    REQUIRE_INITIALISED();
    REQUIRE(module != NULL && fname != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(module_read_file(fname, &contents, NULL));
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
    *mode = lazy() ? CU_MODULE_LAZY_LOADING : CU_MODULE_EAGER_LOADING;
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
    if (ret == CUDA_SUCCESS) {
        function->module = hmod;
        ret = module_load(hmod);
    }
    pthread_mutex_unlock(&mutex);
    if (ret == CUDA_SUCCESS)
        *hfunc = (CUfunction)(void *)function;
    return ret;
}

CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule mod) {
    REQUIRE(count != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_INITIALISED();
    REQUIRE(handle_valid(&modules, mod), CUDA_ERROR_INVALID_HANDLE);
    *count = module_image(mod)->kernel_count;
    return CUDA_SUCCESS;
}

/* Under the mutex. The first functions of an image, without loading anything. */
static CUresult enumerate(struct image *image, struct function **list, struct CUmod_st *module,
                          struct CUlib_st *library, void **out, unsigned count) {
    struct function *function;

    for (unsigned i = 0; i < count && i < image->kernel_count; i++) {
        TRY(get_function(image, list, image->kernels[i].name, &function));
        function->module = module;
        function->library = library;
        out[i] = function;
    }
    return CUDA_SUCCESS;
}

CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int numFunctions, CUmodule mod) {
    CUresult ret;

    REQUIRE(functions != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_INITIALISED();
    REQUIRE(handle_valid(&modules, mod), CUDA_ERROR_INVALID_HANDLE);
    pthread_mutex_lock(&mutex);
    ret = enumerate(module_image(mod), &mod->functions, mod, NULL, (void **)functions, numFunctions);
    pthread_mutex_unlock(&mutex);
    return ret;
}

/* Under the mutex. */
static CUresult get_variable(struct CUmod_st *module, const char *name, bool only_managed, CUdeviceptr *address,
                             size_t *bytes) {
    const struct image_variable *variable = image_variable(module_image(module), name);

    REQUIRE(variable != NULL && (variable->managed || !only_managed), CUDA_ERROR_NOT_FOUND);
    TRY(module_load(module));
    if (address != NULL)
        *address = (variable->managed ? module->managed : module->data) + variable->offset;
    if (bytes != NULL)
        *bytes = variable->size;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod, const char *name) {
    CUresult ret;

    REQUIRE_INITIALISED();
    REQUIRE(name != NULL && (dptr != NULL || bytes != NULL), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(handle_valid(&modules, hmod), CUDA_ERROR_INVALID_HANDLE);
    pthread_mutex_lock(&mutex);
    ret = get_variable(hmod, name, false, dptr, bytes);
    pthread_mutex_unlock(&mutex);
    return ret;
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

CUresult module_find_reference(CUmodule module, const char *name, enum image_variable_kind kind,
                               struct CUctx_st **context) {
    bool found;

    REQUIRE(handle_valid(&modules, module), CUDA_ERROR_INVALID_HANDLE);
    pthread_mutex_lock(&mutex);
    found = image_reference(module_image(module), name, kind);
    *context = module->context;
    pthread_mutex_unlock(&mutex);
    return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
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

/* Under the mutex. The library's module in the context, made if there is none yet. */
static CUresult library_module(struct CUctx_st *context, struct CUlib_st *library, CUmodule *module) {
    for (*module = library->modules; *module != NULL; *module = (*module)->next) {
        if ((*module)->context == context)
            return CUDA_SUCCESS;
    }
    return module_new(context, &library->image, library, module);
}

struct eager_load {
    struct CUctx_st *context;
    struct CUlib_st *library;
    CUresult result;
};

static void load_into_context(void *element, void *arg) {
    struct CUctx_st *context = element;
    struct eager_load *load = arg;
    CUmodule module;

    if (context->target == context && context->legacy != NULL && load->result == CUDA_SUCCESS)
        load->result = library_module(context, load->library, &module);
}

static void load_library(void *element, void *arg) {
    struct eager_load *load = arg;

    load->library = element;
    load_into_context(load->context, load);
}

CUresult libraries_context_new(struct CUctx_st *context) {
    struct eager_load load = {.context = context, .result = CUDA_SUCCESS};

    if (lazy())
        return CUDA_SUCCESS;
    pthread_mutex_lock(&mutex);
    handle_each(&libraries, load_library, &load);
    pthread_mutex_unlock(&mutex);
    return load.result;
}

/* Eagerly, a library goes into all contexts at once. */
static CUresult library_new(struct image *image, CUlibrary *out) {
    struct CUlib_st *library = handle_new(&libraries);
    struct eager_load load = {.library = library, .result = CUDA_SUCCESS};

    if (library == NULL) {
        image_free(image);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    library->image = *image;
    *out = library;
    if (lazy())
        return CUDA_SUCCESS;
    pthread_mutex_lock(&mutex);
    handle_each(&contexts, load_into_context, &load);
    pthread_mutex_unlock(&mutex);
    if (load.result != CUDA_SUCCESS)
        cuLibraryUnload(library);
    return load.result;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions, void **jitOptionsValues,
                           unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
                           unsigned int numLibraryOptions) {
    struct image image;

    REQUIRE(library != NULL && code != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_INITIALISED();
    REQUIRE(numJitOptions == 0 || (jitOptions != NULL && jitOptionsValues != NULL), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(numLibraryOptions == 0 || libraryOptions != NULL, CUDA_ERROR_INVALID_VALUE);
    (void)libraryOptionValues;
    TRY(image_read(code, &image));
    return library_new(&image, library);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions,
                               void **jitOptionsValues, unsigned int numJitOptions, CUlibraryOption *libraryOptions,
                               void **libraryOptionValues, unsigned int numLibraryOptions) {
    char *contents;
    CUresult ret;

    REQUIRE(library != NULL && fileName != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_INITIALISED();
    REQUIRE(numLibraryOptions == 0 || libraryOptions != NULL, CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < numLibraryOptions; i++)
        REQUIRE(libraryOptions[i] != CU_LIBRARY_BINARY_IS_PRESERVED, CUDA_ERROR_INVALID_VALUE);
    TRY(module_read_file(fileName, &contents, NULL));
    ret = cuLibraryLoadData(library, contents, jitOptions, jitOptionsValues, numJitOptions, libraryOptions,
                            libraryOptionValues, numLibraryOptions);
    free(contents);
    return ret;
}

CUresult cuLibraryUnload(CUlibrary library) {
    REQUIRE_INITIALISED();
    REQUIRE(handle_valid(&libraries, library), CUDA_ERROR_INVALID_HANDLE);
    pthread_mutex_lock(&mutex);
    while (library->modules != NULL)
        module_delete(library->modules, false);
    delete_functions(library->kernels);
    image_free(&library->image);
    handle_delete(&libraries, library);
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name) {
    struct function *kernel;
    CUresult ret;

    REQUIRE(pKernel != NULL && name != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_INITIALISED();
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

CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary lib) {
    REQUIRE(count != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_INITIALISED();
    REQUIRE(handle_valid(&libraries, lib), CUDA_ERROR_INVALID_HANDLE);
    *count = lib->image.kernel_count;
    return CUDA_SUCCESS;
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int numKernels, CUlibrary lib) {
    CUresult ret;

    REQUIRE(kernels != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_INITIALISED();
    REQUIRE(handle_valid(&libraries, lib), CUDA_ERROR_INVALID_HANDLE);
    pthread_mutex_lock(&mutex);
    ret = enumerate(&lib->image, &lib->kernels, NULL, lib, (void **)kernels, numKernels);
    pthread_mutex_unlock(&mutex);
    return ret;
}

CUresult cuLibraryGetModule(CUmodule *pMod, CUlibrary library) {
    CUresult ret;

    REQUIRE(pMod != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_CONTEXT(context);
    REQUIRE(handle_valid(&libraries, library), CUDA_ERROR_INVALID_HANDLE);
    pthread_mutex_lock(&mutex);
    ret = library_module(context, library, pMod);
    pthread_mutex_unlock(&mutex);
    return ret;
}

#define REQUIRE_KERNEL(handle, kernel)                                                                                 \
    struct function *kernel = (struct function *)(void *)(handle);                                                     \
    REQUIRE_INITIALISED();                                                                                             \
    REQUIRE(handle_valid(&functions, kernel) && kernel->library != NULL, CUDA_ERROR_INVALID_HANDLE)

CUresult cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel) {
    CUmodule module;

    REQUIRE(pFunc != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_KERNEL(kernel, found);
    TRY(cuLibraryGetModule(&module, found->library));
    return cuModuleGetFunction(pFunc, module, found->name);
}

CUresult cuKernelGetLibrary(CUlibrary *pLib, CUkernel kernel) {
    REQUIRE_KERNEL(kernel, found);
    REQUIRE(pLib != NULL, CUDA_ERROR_INVALID_VALUE);
    *pLib = found->library;
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name) {
    CUmodule module;

    TRY(cuLibraryGetModule(&module, library));
    return cuModuleGetGlobal_v2(dptr, bytes, module, name);
}

/* Managed variables, too, are the context's that first asked for the library: each context has its own. */
CUresult cuLibraryGetManaged(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name) {
    CUmodule module;
    CUresult ret;

    REQUIRE_INITIALISED();
    REQUIRE(name != NULL && (dptr != NULL || bytes != NULL), CUDA_ERROR_INVALID_VALUE);
    TRY(cuLibraryGetModule(&module, library));
    pthread_mutex_lock(&mutex);
    ret = get_variable(module, name, true, dptr, bytes);
    pthread_mutex_unlock(&mutex);
    return ret;
}

/* No function here has an address that host and GPU share. */
CUresult cuLibraryGetUnifiedFunction(void **fptr, CUlibrary library, const char *symbol) {
    REQUIRE_INITIALISED();
    REQUIRE(fptr != NULL && symbol != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(handle_valid(&libraries, library), CUDA_ERROR_INVALID_HANDLE);
    return CUDA_ERROR_NOT_FOUND;
}

/* ---- Before a launch ---- */

CUresult function_prepare(struct CUctx_st *context, struct function *function) {
    uint64_t epoch = atomic_load(&context->launch_epoch);
    struct CUmod_st *module = function->module;
    CUresult ret = CUDA_SUCCESS;

    pthread_mutex_lock(&mutex);
    if (module == NULL)
        ret = library_module(context, function->library, &module);
    if (ret == CUDA_SUCCESS)
        ret = module_load(module);
    pthread_mutex_unlock(&mutex);
    if (ret != CUDA_SUCCESS)
        return ret;
    TRY(context_grow_local(context, function->local_bytes));
    TRY(context_first_launch(context));
    /* What found no room on the GPU may find some before the next launch. */
    if (managed_prepare_launch(context))
        atomic_store_explicit(&function->ready, epoch, memory_order_relaxed);
    return CUDA_SUCCESS;
}

/* ---- What a function can be asked ---- */

#define REQUIRE_FUNCTION(hfunc, found)                                                                                 \
    struct function *found = (struct function *)(void *)(hfunc);                                                       \
    REQUIRE_INITIALISED();                                                                                             \
    REQUIRE(handle_valid(&functions, found), CUDA_ERROR_INVALID_HANDLE)

/* Whether the module of a function has its memory; of a library's kernel there is a module for each context. */
static bool is_loaded(const struct function *function) {
    return function->module == NULL || function->module->loaded;
}

static CUresult get_attribute(const struct function *function, CUfunction_attribute attribute, int *value) {
    static const int fixed[CU_FUNC_ATTRIBUTE_MAX] = {
        [CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024,
        [CU_FUNC_ATTRIBUTE_NUM_REGS] = 32,
        [CU_FUNC_ATTRIBUTE_PTX_VERSION] = 90,
        [CU_FUNC_ATTRIBUTE_BINARY_VERSION] = 90,
        [CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT] = -1,
    };

    REQUIRE(value != NULL && (int)attribute >= 0 && attribute < CU_FUNC_ATTRIBUTE_MAX, CUDA_ERROR_INVALID_VALUE);
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
        REQUIRE(is_loaded(function), CUDA_ERROR_FUNCTION_NOT_LOADED);
        *value = fixed[attribute];
        break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
        REQUIRE(is_loaded(function), CUDA_ERROR_FUNCTION_NOT_LOADED);
        *value = (int)function->local_bytes;
        break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
        *value = (int)function->shared_bytes;
        break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = function->dynamic_shared_bytes;
        break;
    default:
        *value = fixed[attribute];
    }
    return CUDA_SUCCESS;
}

static CUresult set_attribute(struct function *function, CUfunction_attribute attribute, int value) {
    if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT)
        return value >= -1 && value <= 100 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    REQUIRE(attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value >= 0 && value <= MAX_SHARED_BYTES,
            CUDA_ERROR_INVALID_VALUE);
    function->dynamic_shared_bytes = value;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *pi, CUfunction_attribute attrib, CUfunction hfunc) {
    REQUIRE(pi != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_FUNCTION(hfunc, function);
    return get_attribute(function, attrib, pi);
}

CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value) {
    REQUIRE_FUNCTION(hfunc, function);
    return set_attribute(function, attrib, value);
}

CUresult cuKernelGetAttribute(int *pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev) {
    REQUIRE_KERNEL(kernel, function);
    REQUIRE(device_valid(dev), CUDA_ERROR_INVALID_DEVICE);
    return get_attribute(function, attrib, pi);
}

CUresult cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev) {
    REQUIRE_KERNEL(kernel, function);
    REQUIRE(device_valid(dev), CUDA_ERROR_INVALID_DEVICE);
    return set_attribute(function, attrib, val);
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev) {
    REQUIRE_KERNEL(kernel, function);
    (void)function;
    REQUIRE(device_valid(dev), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE((int)config >= 0 && config <= CU_FUNC_CACHE_PREFER_EQUAL, CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function) {
    REQUIRE(state != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_FUNCTION(function, found);
    *state = is_loaded(found) ? CU_FUNCTION_LOADING_STATE_LOADED : CU_FUNCTION_LOADING_STATE_UNLOADED;
    return CUDA_SUCCESS;
}

CUresult cuFuncLoad(CUfunction function) {
    CUresult ret = CUDA_SUCCESS;

    REQUIRE_FUNCTION(function, found);
    pthread_mutex_lock(&mutex);
    if (found->module != NULL)
        ret = module_load(found->module);
    pthread_mutex_unlock(&mutex);
    return ret;
}

CUresult cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config) {
    REQUIRE_FUNCTION(hfunc, function);
    REQUIRE((int)config >= 0 && config <= CU_FUNC_CACHE_PREFER_EQUAL, CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

CUresult cuFuncSetSharedMemConfig(CUfunction hfunc, CUsharedconfig config) {
    REQUIRE_FUNCTION(hfunc, function);
    REQUIRE((int)config >= 0 && config <= CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE, CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

CUresult cuFuncGetModule(CUmodule *hmod, CUfunction hfunc) {
    REQUIRE_FUNCTION(hfunc, function);
    REQUIRE(hmod != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(function->module != NULL, CUDA_ERROR_INVALID_HANDLE);
    *hmod = function->module;
    return CUDA_SUCCESS;
}

/* Of a kernel that a compressed image may hold, nobody here knows the parameters. */
static CUresult get_parameter(const struct function *function, size_t number, size_t *offset, size_t *size) {
    struct image *image = function->module != NULL ? module_image(function->module) : &function->library->image;
    const struct image_kernel *kernel;
    CUresult ret = CUDA_ERROR_INVALID_VALUE;

    pthread_mutex_lock(&mutex);
    kernel = image_kernel(image, function->name);
    if (image->open) {
        ret = CUDA_ERROR_NOT_SUPPORTED;
    } else if (kernel != NULL && number < kernel->parameter_count) {
        *offset = kernel->parameters[number].offset;
        if (size != NULL)
            *size = kernel->parameters[number].size;
        ret = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&mutex);
    return ret;
}

CUresult cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t *paramOffset, size_t *paramSize) {
    REQUIRE(paramOffset != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_FUNCTION(func, function);
    return get_parameter(function, paramIndex, paramOffset, paramSize);
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t *paramOffset, size_t *paramSize) {
    REQUIRE(paramOffset != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_KERNEL(kernel, function);
    return get_parameter(function, paramIndex, paramOffset, paramSize);
}

CUresult cuFuncGetName(const char **name, CUfunction hfunc) {
    REQUIRE(name != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_FUNCTION(hfunc, function);
    *name = function->name;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetName(const char **name, CUkernel hfunc) {
    REQUIRE(name != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_FUNCTION(hfunc, function);
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
