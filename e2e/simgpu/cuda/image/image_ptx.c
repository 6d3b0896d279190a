/*
 * PTX: a list of declarations and of functions with a body. What is declared with a state space takes memory: .global
 * and .const outside of functions with the module, .local inside of a kernel with each of its threads.
 */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/memory/heap.h"
#include "image.h"

#define PARAMETER_BYTES 65536 /* more than any GPU takes */

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
        if ((s[0] == '/' && s[1] == '/') || s[0] == '#') {
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

/* ---- Declarations: what PTX ISA does not allow, ptxas refuses ---- */

struct declaration {
    uint64_t element, alignment;
    unsigned vector;
    bool managed;
    enum image_variable_kind kind;
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
    if (after == token.at + token.length)
        return bits < 8 ? 0 : bits / 8;
    return is((struct token){after, (size_t)(token.at + token.length - after)}, "x2") ? bits / 4 : 0;
}

/* 12, 0x1f, 017, 0b11, with or without U. Of constant expressions no others are read here. */
static bool is_number(struct token token, uint64_t *number) {
    bool binary = token.length > 2 && token.at[0] == '0' && (token.at[1] == 'b' || token.at[1] == 'B');
    char *after;

    if (token.length == 0 || !isdigit((unsigned char)*token.at))
        return false;
    errno = 0;
    *number = binary ? strtoull(token.at + 2, &after, 2) : strtoull(token.at, &after, 0);
    after += *after == 'U';
    return errno == 0 && after == token.at + token.length;
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
static CUresult count_elements(const char **text, uint64_t *count) {
    for (const char *ahead = *text; is_char(next(&ahead), '['); *text = ahead) {
        struct token size = next(&ahead);
        uint64_t number;

        if (is_char(size, ']'))
            number = count_values(ahead);
        else
            REQUIRE(is_number(size, &number) && is_char(next(&ahead), ']'), CUDA_ERROR_INVALID_PTX);
        REQUIRE(!__builtin_mul_overflow(*count, number, count), CUDA_ERROR_INVALID_PTX);
    }
    return CUDA_SUCCESS;
}

/* name<4>: as many variables. */
static CUresult count_names(const char **text, uint64_t *count) {
    const char *ahead = *text;

    *count = 1;
    if (!is_char(next(&ahead), '<'))
        return CUDA_SUCCESS;
    REQUIRE(is_number(next(&ahead), count) && is_char(next(&ahead), '>'), CUDA_ERROR_INVALID_PTX);
    *text = ahead;
    return CUDA_SUCCESS;
}

static CUresult read_attribute(const char **text, struct declaration *d) {
    REQUIRE(is_char(next(text), '('), CUDA_ERROR_INVALID_PTX);
    d->managed = is(next(text), ".managed");
    skip_to(text, '(', ')');
    return CUDA_SUCCESS;
}

/* ".align 16 .v4 .f32", up to the first name. */
static CUresult read_directives(const char **text, struct declaration *d) {
    bool typed = false;

    for (const char *ahead = *text;; *text = ahead) {
        struct token token = next(&ahead);
        uint64_t number;

        if (is_char(token, '[')) { /* a bank of constants */
            REQUIRE(!typed && is_number(next(&ahead), &number) && is_char(next(&ahead), ']'), CUDA_ERROR_INVALID_PTX);
        } else if (*token.at != '.') {
            break;
        } else if (is(token, ".align")) {
            REQUIRE(is_number(next(&ahead), &d->alignment), CUDA_ERROR_INVALID_PTX);
            REQUIRE(d->alignment != 0 && (d->alignment & (d->alignment - 1)) == 0, CUDA_ERROR_INVALID_PTX);
        } else if (is(token, ".attribute")) {
            TRY(read_attribute(&ahead, d));
        } else if (is(token, ".v2") || is(token, ".v4")) {
            d->vector = token.at[2] == '2' ? 2 : 4;
        } else {
            d->element = type_bytes(token);
            if (is(token, ".texref"))
                d->kind = IMAGE_TEXTURE;
            else if (is(token, ".surfref"))
                d->kind = IMAGE_SURFACE;
            else
                REQUIRE(d->element != 0 || is(token, ".samplerref"), CUDA_ERROR_INVALID_PTX);
            typed = true;
        }
    }
    return typed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PTX;
}

/* Goes past a value, to the comma or the semicolon after it. */
static CUresult skip_value(const char **text) {
    int depth = 0;

    for (const char *ahead = *text;; *text = ahead) {
        struct token token = next(&ahead);

        REQUIRE(token.length != 0, CUDA_ERROR_INVALID_PTX);
        if (depth == 0 && (is_char(token, ';') || is_char(token, ',')))
            return CUDA_SUCCESS;
        depth += is_char(token, '{') || is_char(token, '(');
        depth -= is_char(token, '}') || is_char(token, ')');
        REQUIRE(depth >= 0 && !is_char(token, ';'), CUDA_ERROR_INVALID_PTX);
    }
}

typedef CUresult declared_fn(void *arg, struct token name, struct image_variable variable);

static CUresult read_variable(const char **text, const struct declaration *d, declared_fn *fn, void *arg) {
    uint64_t element = d->element * d->vector, names;
    struct image_variable variable = {.kind = d->kind,
                                      .alignment = d->alignment != 0 ? d->alignment : element,
                                      .offset = UINT64_MAX,
                                      .managed = d->managed};
    struct token name = next(text), after;
    const char *ahead;

    REQUIRE(name.length != 0 && (isalpha((unsigned char)*name.at) || strchr("_$%", *name.at) != NULL) &&
                memchr(name.at, '.', name.length) == NULL,
            CUDA_ERROR_INVALID_PTX);
    TRY(count_names(text, &variable.size));
    names = variable.size;
    TRY(count_elements(text, &variable.size));
    REQUIRE(!__builtin_mul_overflow(variable.size, element, &variable.size), CUDA_ERROR_INVALID_PTX);
    ahead = *text;
    after = next(&ahead);
    if (is_char(after, '=')) {
        REQUIRE(names == 1, CUDA_ERROR_INVALID_PTX);
        TRY(skip_value(&ahead));
        *text = ahead;
    }
    return fn(arg, name, variable);
}

/* Reads what follows .global and its like up to the semicolon; calls fn for each variable. */
static CUresult read_declaration(const char **text, declared_fn *fn, void *arg) {
    struct declaration d = {.vector = 1};
    struct token token;

    TRY(read_directives(text, &d));
    do {
        TRY(read_variable(text, &d, fn, arg));
        token = next(text);
    } while (is_char(token, ','));
    return is_char(token, ';') ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PTX;
}

static CUresult add_variable(void *image, struct token name, struct image_variable variable) {
    return variable.size != 0 || variable.kind != IMAGE_MEMORY
               ? image_add_variable(image, name.at, name.length, variable)
               : CUDA_SUCCESS;
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

/* Behind .ptr stands where a pointer points to, which says nothing of the parameter. */
static CUresult read_parameter(const char **text, struct image_kernel *kernel) {
    const struct image_parameter *known = kernel->parameters;
    unsigned before = kernel->parameter_count;
    uint64_t end = before != 0 ? known[before - 1].offset + known[before - 1].size : 0;
    uint64_t element = 0, count = 1, alignment = 0, number;
    struct token token;
    bool pointer = false;

    REQUIRE(is(next(text), ".param"), CUDA_ERROR_INVALID_PTX);
    while (*(token = next(text)).at == '.') {
        if (is(token, ".align")) {
            REQUIRE(is_number(next(text), &number) && number != 0 && (number & (number - 1)) == 0,
                    CUDA_ERROR_INVALID_PTX);
            alignment = pointer ? alignment : number;
        } else if (is(token, ".ptr")) {
            pointer = true;
        } else if (is(token, ".texref") || is(token, ".samplerref") || is(token, ".surfref")) {
            element = 8;
        } else if (type_bytes(token) != 0) {
            element = type_bytes(token);
        }
    }
    REQUIRE(element != 0 && token.length != 0, CUDA_ERROR_INVALID_PTX);
    TRY(count_elements(text, &count));
    REQUIRE(count <= PARAMETER_BYTES / element && alignment <= PARAMETER_BYTES, CUDA_ERROR_INVALID_PTX);
    return image_set_parameter(
        kernel, before, (struct image_parameter){round_up(end, alignment != 0 ? alignment : element), count * element});
}

/* From behind the opening parenthesis to the closing one. */
static CUresult read_parameters(const char **text, struct image_kernel *kernel) {
    const char *ahead = *text;
    struct token token = next(&ahead);

    if (is_char(token, ')')) {
        *text = ahead;
        return CUDA_SUCCESS;
    }
    do {
        TRY(read_parameter(text, kernel));
        token = next(text);
    } while (is_char(token, ','));
    return is_char(token, ')') ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PTX;
}

/*
 * From behind .entry or .func to the end of the body; a semicolon instead of one declares another module's, which gets no
 * name here.
 */
static CUresult read_head_and_body(const char **text, bool entry, struct image_kernel *kernel, struct token *name) {
    struct token token;
    int depth = 0;

    for (const char *before = *text; (token = next(text)).length != 0; before = *text) {
        if (depth == 0 && begins_another(token)) {
            *text = before;
            break;
        }
        if (is_char(token, '(') && entry && name->length != 0 && depth == 0)
            TRY(read_parameters(text, kernel));
        else if (is_char(token, '('))
            skip_to(text, '(', ')');
        else if (depth == 0 && is(token, ".pragma"))
            skip_to(text, '\0', ';');
        else if (is_char(token, ';') && depth == 0) {
            *name = (struct token){0};
            break;
        } else if (is_char(token, '{'))
            depth++;
        else if (is_char(token, '}') && --depth <= 0)
            break;
        else if (depth > 0 && is(token, ".local"))
            TRY(read_declaration(text, add_bytes, &kernel->local_bytes));
        else if (depth > 0 && is(token, ".shared"))
            TRY(read_declaration(text, add_bytes, &kernel->shared_bytes));
        else if (depth == 0 && name->length == 0 && *token.at != '.')
            *name = token;
    }
    return CUDA_SUCCESS;
}

static CUresult read_function(const char **text, bool entry, struct image *image) {
    struct image_kernel kernel = {0};
    struct token name = {0};
    CUresult ret = read_head_and_body(text, entry, &kernel, &name);

    bool is_kernel = ret == CUDA_SUCCESS && entry && name.length != 0;

    if (is_kernel)
        ret = image_add_kernel(image, name.at, name.length, kernel.local_bytes, kernel.shared_bytes);
    if (is_kernel && ret == CUDA_SUCCESS && kernel.parameter_count != 0) {
        image->kernels[image->kernel_count - 1].parameters = kernel.parameters;
        image->kernels[image->kernel_count - 1].parameter_count = kernel.parameter_count;
    } else {
        free(kernel.parameters);
    }
    return ret;
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
