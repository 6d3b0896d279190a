/*
 * Included before everything: what moved into libc.so.6 with glibc 2.34 is asked for under the version that it had before
 * and still has, so that what is compiled here runs on machines with an older glibc.
 */
#if !defined(GPUCHECK_OLD_GLIBC_H) && !defined(__ASSEMBLER__)
#define GPUCHECK_OLD_GLIBC_H

#if defined(__x86_64__)
#define OLD(name) __asm__(".symver " #name ", " #name "@GLIBC_2.2.5")
#else
#define OLD(name) __asm__(".symver " #name ", " #name "@GLIBC_2.17")
#endif

OLD(dlopen);
OLD(dlsym);
OLD(dladdr);
OLD(dlerror);
OLD(pthread_create);
OLD(pthread_join);
OLD(pthread_barrier_init);
OLD(pthread_barrier_wait);
OLD(pthread_barrier_destroy);

#endif
