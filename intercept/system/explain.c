#include "system/explain.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

void explain(enum cause cause, const char *format, ...) {
    static _Atomic unsigned explained;
    if (atomic_fetch_or(&explained, 1u << cause) & 1u << cause)
        return;

    int error = errno;
    char line[1024] = "tranche: ";
    size_t used = strlen(line), room = sizeof line - used - 1;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line + used, room, format, arguments);
    va_end(arguments);
    if (length > 0) {
        used += (size_t)length < room ? (size_t)length : room - 1;
        line[used++] = '\n';
        /* One system call, so that lines of several processes do not mix. Not write(), which is a cancellation point. */
        syscall(SYS_write, STDERR_FILENO, line, used);
    }
    errno = error;
}
