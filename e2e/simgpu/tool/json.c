#include "json.h"

#include <inttypes.h>

static void quote(FILE *out, const char *s) {
    fputc('"', out);
    for (; *s != '\0'; s++) {
        if (*s == '"' || *s == '\\')
            fprintf(out, "\\%c", *s);
        else if ((unsigned char)*s < 0x20)
            fprintf(out, "\\u%04x", (unsigned char)*s);
        else
            fputc(*s, out);
    }
    fputc('"', out);
}

static void begin(struct json *json, const char *key) {
    if (json->more)
        fputc(',', json->out);
    if (key != NULL) {
        quote(json->out, key);
        fputc(':', json->out);
    }
    json->more = true;
}

void json_open(struct json *json, const char *key, char bracket) {
    begin(json, key);
    fputc(bracket, json->out);
    json->more = false;
}

void json_close(struct json *json, char bracket) {
    fputc(bracket, json->out);
    json->more = true;
}

void json_string(struct json *json, const char *key, const char *value) {
    begin(json, key);
    quote(json->out, value);
}

void json_number(struct json *json, const char *key, uint64_t value) {
    begin(json, key);
    fprintf(json->out, "%" PRIu64, value);
}

void json_bool(struct json *json, const char *key, bool value) {
    begin(json, key);
    fputs(value ? "true" : "false", json->out);
}
