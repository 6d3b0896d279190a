#include "talk.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put(const char *name, const char *format, va_list arguments) {
    printf("{\"step\":\"%s\"", name);
    if (format[0] != '\0') {
        putchar(',');
        vprintf(format, arguments);
    }
    puts("}");
    fflush(stdout);
}

void say(const char *name, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    put(name, format, arguments);
    va_end(arguments);
}

void step(const char *name, const char *format, ...) {
    char line[64];
    va_list arguments;
    va_start(arguments, format);
    put(name, format, arguments);
    va_end(arguments);
    if (!read_line(line, sizeof line))
        exit(3);
}

bool read_line(char *line, size_t size) {
    if (fgets(line, (int)size, stdin) == NULL)
        return false;
    line[strcspn(line, "\n")] = '\0';
    return true;
}
