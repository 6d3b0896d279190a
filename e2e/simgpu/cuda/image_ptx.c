/*
 * PTX: a list of declarations and of functions with a body. What is declared with a state space takes memory: .global
 * and .const outside of functions with the module, .local inside of a kernel with each of its threads.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "image.h"

struct token {
    const char *at;
    size_t length; /* 0 at the end */
};

static bool word_char(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '.' || c == '%';
}

static const char *skip_space(const char *s) {
    for (;;) {
        while (isspace((unsigned char)*s))
            s++;
        if (s[0] == '/' && s[1] == '/') {
            s += strcspn(s, "\n");
        } else if (s[0] == '/' && s[1] == '*') {
            const char *end = strstr(s + 2, "*/");

            s = end != NULL ? end + 2 : s + strlen(s);
        } else {
            return s;
        }
    }
}

/* A word with its dots (ld.global.u32), a string, or one other character. */
static struct token next(const char **text) {
    struct token token = {skip_space(*text), 0};

    if (*token.at == '"') {
        token.length = 1 + strcspn(token.at + 1, "\"");
        token.length += token.at[token.length] == '"';
    } else {
        while (word_char(token.at[token.length]))
            token.length++;
        if (token.length == 0 && *token.at != '\0')
            token.length = 1;
    }
    *text = token.at + token.length;
    return token;
}

static bool is(struct token token, const char *what) {
    return token.length == strlen(what) && memcmp(token.at, what, token.length) == 0;
}

static bool is_char(struct token token, char what) {
    return token.length == 1 && *token.at == what;
}

/* Goes past the token that closes what is open. */
static void skip_to(const char **text, char open, char close) {
    int depth = 1;

    while (depth > 0) {
        struct token token = next(text);

        if (token.length == 0)
            return;
        depth += is_char(token, open) - is_char(token, close);
    }
}

/* ---- Declarations ---- */

struct declaration {
    uint64_t element, alignment;
    unsigned vector;
    bool managed;
};

/* Bytes of a type: .b8, .f32, .f16x2. 0 for what is no memory, such as .texref. */
static uint64_t type_bytes(struct token token) {
    char *after;
    uint64_t bits;

    if (token.length < 3 || *token.at != '.')
        return 0;
    if (memcmp(token.at, ".bf", 3) == 0)
        bits = strtoull(token.at + 3, &after, 10);
    else if (strchr("busf", token.at[1]) != NULL && isdigit((unsigned char)token.at[2]))
        bits = strtoull(token.at + 2, &after, 10);
    else
        return 0;
    return (*after == 'x' ? 2 : 1) * bits / 8;
}

/* The values between braces, as many as there are commas and one. */
static uint64_t count_values(const char *text) {
    uint64_t count = 1;
    struct token token;

    while ((token = next(&text)).length != 0 && !is_char(token, ';'))
        count += is_char(token, ',');
    return count;
}

/* [4][8], and [] where the values tell. */
static uint64_t count_elements(const char **text) {
    const char *ahead = *text;
    uint64_t count = 1;

    while (is_char(next(&ahead), '[')) {
        struct token size = next(&ahead);

        if (is_char(size, ']')) {
            count *= count_values(ahead);
        } else {
            count *= strtoull(size.at, NULL, 0);
            next(&ahead);
        }
        *text = ahead;
    }
    return count;
}

typedef CUresult declared_fn(void *arg, struct token name, struct image_variable variable);

/* Reads what follows .global and its like up to the semicolon; calls fn for each variable. */
static CUresult read_declaration(const char **text, declared_fn *fn, void *arg) {
    struct declaration d = {.vector = 1};
    struct token token;

    while ((token = next(text)).length != 0 && !is_char(token, ';')) {
        if (is(token, ".align")) {
            d.alignment = strtoull(next(text).at, NULL, 0);
        } else if (is(token, ".attribute")) {
            next(text);
            d.managed = is(next(text), ".managed");
            skip_to(text, '(', ')');
        } else if (is(token, ".v2") || is(token, ".v4")) {
            d.vector = token.at[2] == '2' ? 2 : 4;
        } else if (*token.at == '.') {
            d.element = d.element != 0 ? d.element : type_bytes(token);
        } else if (is_char(token, '=')) {
            while ((token = next(text)).length != 0 && !is_char(token, ';')) {
            }
            break;
        } else if (!is_char(token, ',') && d.element != 0) {
            uint64_t element = d.element * d.vector;
            struct image_variable variable = {
                .alignment = d.alignment != 0 ? d.alignment : element, .offset = UINT64_MAX, .managed = d.managed};

            variable.size = element * count_elements(text);
            TRY(fn(arg, token, variable));
        }
    }
    return CUDA_SUCCESS;
}

static CUresult add_variable(void *image, struct token name, struct image_variable variable) {
    return variable.size != 0 ? image_add_variable(image, name.at, name.length, variable) : CUDA_SUCCESS;
}

static CUresult add_bytes(void *sum, struct token name, struct image_variable variable) {
    (void)name;
    *(uint64_t *)sum += variable.size;
    return CUDA_SUCCESS;
}

static CUresult ignore(void *arg, struct token name, struct image_variable variable) {
    (void)arg, (void)name, (void)variable;
    return CUDA_SUCCESS;
}

/* ---- Functions ---- */

/* What cannot be a part of a function's head: where that has no body, the next declaration. */
static bool begins_another(struct token token) {
    return is(token, ".entry") || is(token, ".func") || is(token, ".visible") || is(token, ".weak") ||
           is(token, ".extern") || is(token, ".global") || is(token, ".const");
}

/* From behind .entry or .func to the end of the body; a semicolon instead of one declares another module's. */
static CUresult read_function(const char **text, bool entry, struct image *image) {
    uint64_t local = 0, shared = 0;
    struct token name = {0}, token;
    int depth = 0;

    for (const char *before = *text; (token = next(text)).length != 0; before = *text) {
        if (depth == 0 && begins_another(token)) {
            *text = before;
            break;
        }
        if (is_char(token, '('))
            skip_to(text, '(', ')');
        else if (depth == 0 && is(token, ".pragma"))
            skip_to(text, '\0', ';');
        else if (is_char(token, ';') && depth == 0)
            return CUDA_SUCCESS;
        else if (is_char(token, '{'))
            depth++;
        else if (is_char(token, '}') && --depth <= 0)
            break;
        else if (depth > 0 && is(token, ".local"))
            TRY(read_declaration(text, add_bytes, &local));
        else if (depth > 0 && is(token, ".shared"))
            TRY(read_declaration(text, add_bytes, &shared));
        else if (depth == 0 && name.length == 0 && *token.at != '.')
            name = token;
    }
    return entry && name.length != 0 ? image_add_kernel(image, name.at, name.length, local, shared) : CUDA_SUCCESS;
}

CUresult image_read_ptx(const char *text, struct image *image) {
    const char *begin = text;
    bool external = false; /* what is declared is another module's */
    struct token token;

    while ((token = next(&text)).length != 0) {
        if (is(token, ".entry") || is(token, ".func"))
            TRY(read_function(&text, is(token, ".entry"), image));
        else if (is(token, ".global") || is(token, ".const"))
            TRY(read_declaration(&text, external ? ignore : add_variable, image));
        else if (is(token, ".extern"))
            external = true;
        if (!is(token, ".extern"))
            external = false;
    }
    image->code_bytes = (uint64_t)(text - begin);
    return CUDA_SUCCESS;
}
