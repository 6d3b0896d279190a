/*
 * Writes what the functions of a driver's library return where nothing is initialised: calls LIBRARY NAMES. NAMES is a
 * file of exported functions' names. Each call is made in a process of its own, with arguments that are all 0 or that all
 * point to zeroed memory, and once more after a cuInit that found no GPU. Takes NVML too.
 *
 *   NAME before|after zero|room RESULT
 *   NAME before|after zero|room signal NUMBER
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* More arguments than any of them has; none is a floating point number in the driver's interface but of cuParamSetf. */
typedef int any_function(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t,
                         uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);
typedef int init_function(unsigned flags);

static void call(any_function *function, init_function *init, uintptr_t argument) {
    if (init != NULL)
        init(0);
    int result = function(argument, argument, argument, argument, argument, argument, argument, argument, argument,
                          argument, argument, argument, argument, argument, argument, argument);
    dprintf(STDOUT_FILENO, "%d\n", result);
    _exit(0);
}

/* In a child, which ends by a signal where the driver looks at what it was given. */
static void try(const char *name, any_function *function, init_function *init, uintptr_t argument) {
    int status;

    printf("%s %s %s ", name, init != NULL ? "after" : "before", argument == 0 ? "zero" : "room");
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0});
        alarm(20);
        call(function, init, argument);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        abort();
    if (WIFSIGNALED(status))
        printf("signal %d\n", WTERMSIG(status));
}

/* Always at one address: as a count, or as flags, it is to be the same each time. */
static uintptr_t make_room(void) {
    void *wanted = (void *)(uintptr_t)0x10000000;

    if (mmap(wanted, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) !=
        wanted)
        abort();
    return (uintptr_t)wanted;
}

int main(int argc, char **argv) {
    const uintptr_t room = make_room();
    char name[200];
    any_function *function;
    init_function *init;
    void *library = argc == 3 ? dlopen(argv[1], RTLD_NOW) : NULL;
    FILE *names = argc == 3 ? fopen(argv[2], "re") : NULL;

    if (library == NULL || names == NULL) {
        fprintf(stderr, "calls: %s\n", library == NULL && argc == 3 ? dlerror() : "usage: calls LIBRARY NAMES");
        return 2;
    }
    *(void **)&init = dlsym(library, "cuInit");
    if (init == NULL)
        *(void **)&init = dlsym(library, "nvmlInitWithFlags");
    while (fgets(name, sizeof name, names) != NULL) {
        name[strcspn(name, "\n")] = '\0';
        *(void **)&function = dlsym(library, name);
        if (function == NULL)
            continue;
        try(name, function, NULL, 0);
        try(name, function, NULL, room);
        try(name, function, init, 0);
        try(name, function, init, room);
    }
    return 0;
}
