/*
 * Finding the driver's own functions.
 *
 * The driver's library is our first dependency, $ORIGIN/.tranche/driver-libcuda.so or driver-libnvidia-ml.so, so the loader
 * has mapped it before any of our code runs. The file does not have its SONAME for a name: no search by SONAME, such as
 * one in a job's own LD_LIBRARY_PATH, is to find it. We ask that very library, by its path; only where this path is not known do we ask for the next definition in
 * the order of search (RTLD_NEXT), since that one may belong to somebody else who stands between us and the driver.
 */
#include "real.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/*
 * Since glibc 2.34 these live in libc.so.6 under a new version, which older ones do not have. The old version exists
 * everywhere: in libc.so.6 since then, in libdl.so.2 before; so we name it, and libdl.so.2 as a dependency.
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

static void *open_dependency(const char *file) {
    static const char inside_this_library;
    Dl_info info;
    char path[4096];
    if (dladdr(&inside_this_library, &info) == 0 || info.dli_fname == NULL)
        return NULL;
    const char *slash = strrchr(info.dli_fname, '/');
    int length = slash == NULL ? snprintf(path, sizeof path, "./.tranche/%s", file)
                               : snprintf(path, sizeof path, "%.*s/.tranche/%s", (int)(slash - info.dli_fname),
                                          info.dli_fname, file);
    if (length < 0 || (size_t)length >= sizeof path)
        return NULL;
    return dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
}

void *real_lookup(const char *file, const char *name) {
    static _Atomic(void *) dependency;
    int error = errno;
    void *library = atomic_load(&dependency);
    if (library == NULL) {
        /* Two threads may do this at once and get the same. The reference is never given back, since neither we are ever
         * unloaded (-z nodelete) nor is our dependency. */
        library = open_dependency(file);
        atomic_store(&dependency, library);
    }
    void *function = dlsym(library != NULL ? library : RTLD_NEXT, name);
    errno = error;
    return function;
}
