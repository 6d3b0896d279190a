/*
 * The driver's library is the first dependency (DT_NEEDED) of the shadow library, so the loader has mapped it before
 * any code here runs. The dependency is a path: $ORIGIN/.tranche/driver-libcuda.so or driver-libnvidia-ml.so, and an
 * absolute path in a copy of the shadow that tranche-hook made for another driver library in a container. That file is
 * not named after its SONAME, so that no search by SONAME, for example in a job's LD_LIBRARY_PATH, finds it.
 *
 * Functions are looked up in that library, which dlopen finds by the same path. Only if the path is not known are they
 * looked up as the next definition in the search order (RTLD_NEXT), which may be that of a library between the shadow
 * and the driver.
 */
#include "driver/real.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/*
 * glibc 2.34 moved these functions from libdl.so.2 to libc.so.6 and gave them a new symbol version, which older
 * releases lack. Their old version exists in every release; so it is named here, and libdl.so.2 is a dependency.
 */
#if defined(__x86_64__)
#define OLDEST_GLIBC "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define OLDEST_GLIBC "GLIBC_2.17"
#else
#error "which is the oldest symbol version of glibc on this architecture?"
#endif
__asm__(".symver dlopen, dlopen@" OLDEST_GLIBC);
__asm__(".symver dlsym, dlsym@" OLDEST_GLIBC);
__asm__(".symver dladdr, dladdr@" OLDEST_GLIBC);

/* The path of this library's dependency whose last part is `file`, from this library's dynamic section; NULL if there
 * is none. */
static const char *dependency_named(const char *file, uintptr_t base) {
    uintptr_t strings = 0;
    for (const ElfW(Dyn) *entry = _DYNAMIC; entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == DT_STRTAB)
            strings = entry->d_un.d_ptr;
    if (strings < base) /* glibc relocates this entry; other loaders leave it an offset */
        strings += base;
    for (const ElfW(Dyn) *entry = _DYNAMIC; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag != DT_NEEDED)
            continue;
        const char *path = (const char *)strings + entry->d_un.d_val;
        const char *slash = strrchr(path, '/');
        if (slash != NULL && strcmp(slash + 1, file) == 0)
            return path;
    }
    return NULL;
}

static void *open_dependency(const char *file) {
    static const char inside_this_library, origin[] = "$ORIGIN/";
    Dl_info info;
    char path[4096];
    if (dladdr(&inside_this_library, &info) == 0 || info.dli_fname == NULL)
        return NULL;
    const char *named = dependency_named(file, (uintptr_t)info.dli_fbase);
    if (named == NULL)
        return NULL;
    if (strncmp(named, origin, sizeof origin - 1) != 0)
        return dlopen(named, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    named += sizeof origin - 1;
    const char *slash = strrchr(info.dli_fname, '/');
    int length = slash == NULL
                     ? snprintf(path, sizeof path, "./%s", named)
                     : snprintf(path, sizeof path, "%.*s/%s", (int)(slash - info.dli_fname), info.dli_fname, named);
    if (length < 0 || (size_t)length >= sizeof path)
        return NULL;
    return dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
}

void *real_lookup(const char *file, const char *name) {
    static _Atomic(void *) dependency;
    int error = errno;
    void *library = atomic_load(&dependency);
    if (library == NULL) {
        /* Two threads may do this at once, with the same result. The handle is never closed: this library is not
         * unloaded (-z nodelete), and so neither is its dependency. */
        library = open_dependency(file);
        atomic_store(&dependency, library);
    }
    void *function = dlsym(library != NULL ? library : RTLD_NEXT, name);
    errno = error;
    return function;
}
