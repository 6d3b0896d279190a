/*
 * A program that loads the driver in one way, allocates all it can on device 0, and prints one word: "shadow" if the
 * limit held, "past" if not, "refused" if it got no memory.
 *
 *   loader_probe OPEN LOOKUP [NAME]
 *
 * OPEN is how it loads the library, LOOKUP how it looks up functions; see opens and lookups below. PROBE_LIMIT_MIB is
 * the expected limit; the GPU must have at least 88 MiB and a context more than that. The caller checks the limit by
 * the simulator's record.
 *
 * With PROBE_LINKED it is linked directly and has no arguments; with PROBE_STATIC it has only what a static program
 * has. With PROBE_SECURE it fails unless the loader takes it for a program with more privileges than its caller
 * (AT_SECURE).
 */
#include "../driver/cuda_api.h"
#include "../driver/shadowed.h"

#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#define MIB ((size_t)1 << 20)

struct driver {
    CUresult (*init)(unsigned int);
    CUresult (*create)(CUcontext *, unsigned int, CUdevice);
    CUresult (*alloc)(CUdeviceptr *, size_t);
    CUresult (*info)(size_t *, size_t *);
};

static int say(const char *word, const char *why) {
    fprintf(stderr, "loader_probe: %s\n", why);
    puts(word);
    return 0;
}

static int try(struct driver driver) {
    const char *variable = getenv("PROBE_LIMIT_MIB");
    size_t limit = (size_t)(variable != NULL ? strtoul(variable, NULL, 10) : 512) * MIB;
    size_t free = 0, total = 0;
    CUdeviceptr address = 0;
    CUcontext context;
    CUresult result = driver.init(0);
    if (result == CUDA_SUCCESS)
        result = driver.create(&context, 0, 0);
    if (result != CUDA_SUCCESS) {
        char why[64];
        snprintf(why, sizeof why, "no context: %d", result);
        return say("refused", why);
    }
    if (driver.alloc(&address, limit + 88 * MIB) == CUDA_SUCCESS)
        return say("past", "more than the limit");
    if (driver.alloc(&address, 10 * MIB) != CUDA_SUCCESS)
        return say("nothing", "less than the limit was refused");
    if (driver.info(&free, &total) != CUDA_SUCCESS || total != limit || free >= total)
        return say("misled", "what is reported is not the limit");
    return say("shadow", "the limit held");
}

#ifdef PROBE_LINKED

CUresult cuInit(unsigned int);
CUresult cuCtxCreate_v2(CUcontext *, unsigned int, CUdevice);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemGetInfo_v2(size_t *, size_t *);

int main(void) {
#ifdef PROBE_SECURE
    if (getauxval(AT_SECURE) == 0)
        return say("insecure", "AT_SECURE is not set");
#endif
    return try((struct driver){cuInit, cuCtxCreate_v2, cuMemAlloc_v2, cuMemGetInfo_v2});
}

#else

/* --- how to come to the library --- */

static void *open_lazy(const char *name) {
    return dlopen(name, RTLD_LAZY);
}

static void *open_global(const char *name) {
    return dlopen(name, RTLD_NOW | RTLD_GLOBAL);
}

static void *open_deepbind(const char *name) {
    return dlopen(name, RTLD_NOW | RTLD_DEEPBIND);
}

static void *open_again(const char *name) {
    for (int i = 0; i < 100; i++)
        dlclose(dlopen(name, RTLD_NOW));
    return dlopen(name, RTLD_NOW);
}

#ifndef PROBE_STATIC
static void *open_dlmopen(const char *name) {
    return dlmopen(LM_ID_NEWLM, name, RTLD_NOW);
}

/* What the linker has loaded, or what the program makes global itself. */
static void *open_default(const char *name) {
    return name == NULL || dlopen(name, RTLD_NOW | RTLD_GLOBAL) != NULL ? RTLD_DEFAULT : NULL;
}

static void *open_next(const char *name) {
    return name == NULL || dlopen(name, RTLD_NOW | RTLD_GLOBAL) != NULL ? RTLD_NEXT : NULL;
}

/* The list of what is loaded, of which every library's own symbols can be asked for. */
static void *open_link_map(const char *name) {
    struct link_map *map = NULL;
    void *library = dlopen(name, RTLD_NOW);
    if (library == NULL || dlinfo(library, RTLD_DI_LINKMAP, &map) != 0)
        return NULL;
    while (map->l_prev != NULL)
        map = map->l_prev;
    while (map != NULL && strstr(map->l_name, "/driver-libcuda.so") == NULL)
        map = map->l_next;
    return map;
}
#endif

static const struct {
    const char *name;
    void *(*open)(const char *name);
} opens[] = {
    {"lazy", open_lazy},       {"global", open_global},   {"deepbind", open_deepbind}, {"again", open_again},
#ifndef PROBE_STATIC
    {"dlmopen", open_dlmopen}, {"default", open_default}, {"next", open_next},         {"link-map", open_link_map},
#endif
};

/* --- how to come to a function --- */

typedef CUresult (*get_proc_address)(const char *, void **, int, cuuint64_t);
typedef CUresult (*get_proc_address_v2)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static void *by_dlsym(void *library, const char *name, const char *symbol) {
    (void)name;
    return dlsym(library, symbol);
}

static void *by_address(void *library, const char *name, const char *symbol) {
    void *function = NULL;
    get_proc_address ask = (get_proc_address)dlsym(library, "cuGetProcAddress");
    (void)symbol;
    if (ask != NULL)
        ask(name, &function, 11030, CU_GET_PROC_ADDRESS_DEFAULT);
    return function;
}

/* As the CUDA runtime does it: cuGetProcAddress finds itself first. */
static void *by_address_v2(void *library, const char *name, const char *symbol) {
    void *found = NULL, *function = NULL;
    CUdriverProcAddressQueryResult status;
    get_proc_address_v2 ask = (get_proc_address_v2)dlsym(library, "cuGetProcAddress_v2");
    (void)symbol;
    if (ask == NULL || ask("cuGetProcAddress", &found, 12000, 0, &status) != CUDA_SUCCESS)
        return NULL;
    ((get_proc_address_v2)found)(name, &function, strcmp(name, "cuCtxCreate") == 0 ? 11030 : 12000,
                                 CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status);
    return function;
}

#ifndef PROBE_STATIC
static void *by_version(void *library, const char *name, const char *symbol) {
    (void)name;
    void *function = dlvsym(library, symbol, "libcuda.so.1");
    return function != NULL ? function : dlvsym(library, symbol, "GLIBC_2.2.5");
}

/* A third party's library, linked after libcuda.so.1, that asks for the definition after its own. */
static void *by_library_behind(void *library, const char *name, const char *symbol) {
    void *(*next)(const char *) = (void *(*)(const char *))dlsym(RTLD_DEFAULT, "loader_library_next");
    (void)library;
    (void)name;
    return next != NULL ? next(symbol) : NULL;
}

static bool is_in(void *function, const char *library) {
    Dl_info info;
    return dladdr(function, &info) != 0 && strstr(info.dli_fname, library) != NULL;
}

static unsigned asked, let_through;

static void ask_all(void *library, const char *name, int version) {
    get_proc_address ask = (get_proc_address)dlsym(library, "cuGetProcAddress");
    get_proc_address_v2 ask_v2 = (get_proc_address_v2)dlsym(library, "cuGetProcAddress_v2");
    for (cuuint64_t flags = 0; flags <= 2; flags++) {
        CUdriverProcAddressQueryResult status;
        void *functions[2] = {NULL, NULL};
        ask(name, &functions[0], version, flags);
        ask_v2(name, &functions[1], version, flags, &status);
        for (int i = 0; i < 2; i++) {
            asked += functions[i] != NULL;
            if (functions[i] == NULL || !is_in(functions[i], "/driver-libcuda.so"))
                continue;
            fprintf(stderr, "loader_probe: %s, version %d, flags %d: the driver's own\n", name, version, (int)flags);
            let_through++;
        }
    }
}

/* Every function of ours with every version that there is or may be, and every flag, before it tries some of them. */
static void *by_every_address(void *library, const char *name, const char *symbol) {
    if (asked == 0) {
        static const char *const names[] = {
#define X(symbol, name, since, stream, parameters, ...) name,
            CUDA_SHADOWED(X)
#undef X
        };
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
            for (int major = 2; major <= 14; major++)
                for (int minor = 0; minor <= 9; minor++)
                    ask_all(library, names[i], major * 1000 + minor * 10);
    }
    return asked == 0 || let_through != 0 ? dlsym(library, "cuCtxGetDevice") : by_address_v2(library, name, symbol);
}
#endif

static const struct {
    const char *name;
    void *(*look_up)(void *library, const char *name, const char *symbol);
} lookups[] = {
    {"dlsym", by_dlsym},    {"address", by_address},       {"address-v2", by_address_v2},
#ifndef PROBE_STATIC
    {"dlvsym", by_version}, {"behind", by_library_behind}, {"every-address", by_every_address},
#endif
};

static int try_library(void *library, void *(*look_up)(void *, const char *, const char *)) {
    struct driver driver = {
        (CUresult(*)(unsigned int))look_up(library, "cuInit", "cuInit"),
        (CUresult(*)(CUcontext *, unsigned int, CUdevice))look_up(library, "cuCtxCreate", "cuCtxCreate_v2"),
        (CUresult(*)(CUdeviceptr *, size_t))look_up(library, "cuMemAlloc", "cuMemAlloc_v2"),
        (CUresult(*)(size_t *, size_t *))look_up(library, "cuMemGetInfo", "cuMemGetInfo_v2"),
    };
    if (driver.init == NULL || driver.create == NULL || driver.alloc == NULL || driver.info == NULL)
        return say("refused", "no such function");
#ifndef PROBE_STATIC
    if (let_through != 0)
        return say("past", "cuGetProcAddress lets some through");
#endif
    return try(driver);
}

int main(int argc, char **argv) {
    void *(*look_up)(void *, const char *, const char *) = NULL;
    void *(*open)(const char *) = NULL;
    for (size_t i = 0; argc > 2 && i < sizeof opens / sizeof opens[0]; i++)
        if (strcmp(opens[i].name, argv[1]) == 0)
            open = opens[i].open;
    for (size_t i = 0; argc > 2 && i < sizeof lookups / sizeof lookups[0]; i++)
        if (strcmp(lookups[i].name, argv[2]) == 0)
            look_up = lookups[i].look_up;
    if (open == NULL || look_up == NULL) {
        fprintf(stderr, "usage: %s OPEN LOOKUP [NAME]\n", argv[0]);
        return 2;
    }
    const char *name = argc > 3 ? argv[3] : NULL;
    void *library = open(name);
    /* RTLD_DEFAULT is NULL. */
    if (library == NULL && strcmp(argv[1], "default") != 0)
        return say("refused", dlerror());
    return try_library(library, look_up);
}

#endif
