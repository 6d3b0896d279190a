#include "check.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct checks *checks;

void checks_start(void) {
    checks = mmap(NULL, sizeof *checks, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (checks == MAP_FAILED)
        abort();
}

void checks_run(const char *name, void (*test)(void)) {
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        test();
        exit(0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        abort();
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s ended with status %#x", name, (unsigned)status);
}

int checks_report(void) {
    printf("%d passed, %d failed\n", checks->passed, checks->failed);
    return checks->failed != 0 || checks->passed == 0;
}
