/*
 * Takes a GPU's memory by the driver's library at a path, as a program does that gets past a library in front of it.
 *
 *   around FILE           loads FILE, takes all memory that it gets, says how much, and sleeps
 *   around FILE COPY      copies FILE to COPY first, and loads that
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

static int (*init)(unsigned);
static int (*retain)(void **, int);
static int (*set)(void *);
static int (*allocate)(unsigned long long *, size_t);

static void find(void *driver, const char *name, void *function) {
    void *found = dlsym(driver, name);
    if (found == NULL)
        fprintf(stderr, "around: no function %s\n", name), exit(1);
    *(void **)function = found;
}

static void copy(const char *from, const char *to) {
    struct stat st;
    int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0755);
    if (in < 0 || out < 0 || fstat(in, &st) != 0 || sendfile(out, in, NULL, (size_t)st.st_size) != st.st_size)
        perror("around: copy the driver"), exit(1);
    close(in);
    close(out);
}

static void end(int number) {
    (void)number;
    _exit(0);
}

int main(int argc, char **argv) {
    const size_t piece = 2 << 20;
    const char *file = argv[argc - 1];
    void *context;
    unsigned long long address;
    size_t pieces = 0;
    if (argc == 3)
        copy(argv[1], file);
    void *driver = dlopen(file, RTLD_NOW);
    if (driver == NULL)
        return fprintf(stderr, "around: %s\n", dlerror()), 1;
    find(driver, "cuInit", &init);
    find(driver, "cuDevicePrimaryCtxRetain", &retain);
    find(driver, "cuCtxSetCurrent", &set);
    find(driver, "cuMemAlloc_v2", &allocate);
    if (init(0) != 0 || retain(&context, 0) != 0 || set(context) != 0)
        return fprintf(stderr, "around: no context\n"), 1;
    while (allocate(&address, piece) == 0)
        pieces++;
    signal(SIGINT, end); /* the first process of a container ignores them else */
    signal(SIGTERM, end);
    printf("took %zu MiB as user %d\n", pieces * piece >> 20, (int)geteuid());
    fflush(stdout);
    for (;;)
        pause();
}
