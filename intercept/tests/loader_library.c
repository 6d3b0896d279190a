/*
 * Libraries that a job may bring along, one per definition:
 *
 *   LIBRARY_PLAIN      unrelated to GPUs
 *   LIBRARY_NEXT       looks up the next definition after its own (RTLD_NEXT)
 *   LIBRARY_AUDIT      an auditor of the loader (LD_AUDIT) that changes nothing
 *   LIBRARY_REDIRECT   an auditor that has the loader take LIBRARY_REDIRECT for libcuda.so.1
 */
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <string.h>

#ifdef LIBRARY_PLAIN
int loader_library_plain(void);
int loader_library_plain(void) {
    return 1;
}
#endif

#ifdef LIBRARY_NEXT
void *loader_library_next(const char *symbol);
void *loader_library_next(const char *symbol) {
    return dlsym(RTLD_NEXT, symbol);
}
#endif

#if defined(LIBRARY_AUDIT) || defined(LIBRARY_REDIRECT)
unsigned int la_version(unsigned int version) {
    return version;
}
#endif

#ifdef LIBRARY_REDIRECT
char *la_objsearch(const char *name, uintptr_t *cookie, unsigned int flag) {
    static char file[] = LIBRARY_REDIRECT;
    (void)cookie;
    (void)flag;
    return strcmp(name, "libcuda.so.1") == 0 ? file : (char *)name;
}
#endif
