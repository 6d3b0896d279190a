/* Writing JSON: objects and lists opened and closed in order, commas put by themselves. */
#ifndef SIMGPU_JSON_H
#define SIMGPU_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct json {
    FILE *out;
    bool more; /* something stands before, in the same object or list */
};

/* Each takes the key, or NULL inside a list. `bracket` is the opening or closing one. */
void json_open(struct json *json, const char *key, char bracket);
void json_close(struct json *json, char bracket);
void json_string(struct json *json, const char *key, const char *value);
void json_number(struct json *json, const char *key, uint64_t value);
void json_bool(struct json *json, const char *key, bool value);

#endif
