/*
 * Finding the driver's own functions.
 *
 * The driver's library is our first dependency, so the loader has mapped it before any of our code runs. We name it by a
 * path, $ORIGIN/.tranche/driver-libcuda.so or driver-libnvidia-ml.so; in a copy of us that tranche-hook has made for
 * another driver's library in a container, the path is an absolute one. The file does not have its SONAME for a name: no
 * search by SONAME, such as one in a job's own LD_LIBRARY_PATH, is to find it. We ask that very library, by the path that
 * we name it by; only where this is not known do we ask for the next definition in the order of search (RTLD_NEXT), since
 * that one may belong to somebody else who stands between us and the driver.
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

/* The dependency of ours whose last part is `file`, as we name it: our own dynamic section says. */
static const char *dependency_named(const char *file, uintptr_t base) {
    uintptr_t strings = 0;
    for (const ElfW(Dyn) *entry = _DYNAMIC; entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == DT_STRTAB)
            strings = entry->d_un.d_ptr;
    if (strings < base) /* not every loader makes an address of this offset */
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
        /* Two threads may do this at once and get the same. The reference is never given back, since neither we are ever
         * unloaded (-z nodelete) nor is our dependency. */
        library = open_dependency(file);
        atomic_store(&dependency, library);
    }
    void *function = dlsym(library != NULL ? library : RTLD_NEXT, name);
    errno = error;
    return function;
}
