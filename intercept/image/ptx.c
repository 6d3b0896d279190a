/*
 * The variables that PTX declares with .global and .const. The parser works on a copy without comments, strings and
 * lines that begin with #, which ends with a zero. A declaration that it cannot parse, such as one with a calculated
 * size, makes the text `malformed`: its size would not be counted. In a function, where the same words stand in
 * instructions, it sets `hidden`.
 *
 * Source: "State Spaces", "Variables", "Integer Constants" and "Source Format" in the PTX ISA.
 */
#include "image/ptx.h"

#include "region/pages.h"
#include "system/explain.h"
#include "system/mapped.h"

#include <string.h>

/* --- characters and words ----------------------------------------------------------------------------------------- */

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r'); /* \t \n \v \f \r */
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' || c == '%';
}

static bool in_word(char c) {
    return is_letter(c) || is_digit(c);
}

static const char *skip_word(const char *text) {
    while (in_word(*text))
        text++;
    return text;
}

static bool is(const char *word, size_t length, const char *what) {
    return strlen(what) == length && strncmp(word, what, length) == 0;
}

/* --- numbers ------------------------------------------------------------------------------------------------------ */

/* The parser's position. `failed` is never reset. */
struct reader {
    const char *at;
    bool failed;
};

/* The next character that is no space. */
static char peek(struct reader *reader) {
    while (is_space(*reader->at))
        reader->at++;
    return *reader->at;
}

static bool accept(struct reader *reader, char c) {
    if (peek(reader) != c || c == '\0')
        return false;
    reader->at++;
    return true;
}

/* The value of a digit of any base; 16 if it is none. */
static unsigned digit_of(char c) {
    static const char digits[] = "0123456789abcdef";
    const char *found = c != '\0' ? strchr(digits, is_letter(c) ? c | 0x20 : c) : NULL;
    return found != NULL ? (unsigned)(found - digits) : 16;
}

/* Skips what tells the base of a number: 0x, 0b, 0. */
static unsigned read_base(struct reader *reader) {
    char second = reader->at[0] == '0' ? reader->at[1] : '\0';
    bool hexadecimal = second == 'x' || second == 'X', binary = second == 'b' || second == 'B';
    reader->at += hexadecimal || binary ? 2 : 0;
    return hexadecimal ? 16 : binary ? 2 : is_digit(second) ? 8 : 10;
}

/* An integer constant: hexadecimal, octal, binary or decimal, with or without U. Compilers write no other constant
 * expression here. */
static uint64_t read_number(struct reader *reader) {
    uint64_t number = 0;
    reader->failed = reader->failed || !is_digit(peek(reader));
    unsigned base = read_base(reader);
    reader->failed = reader->failed || digit_of(*reader->at) >= base;
    for (; digit_of(*reader->at) < base; reader->at++)
        if (__builtin_mul_overflow(number, base, &number) ||
            __builtin_add_overflow(number, digit_of(*reader->at), &number))
            reader->failed = true;
    reader->at += *reader->at == 'U';
    reader->failed = reader->failed || in_word(*reader->at) || *reader->at == '.';
    return number;
}

/* --- declarations ------------------------------------------------------------------------------------------------- */

/* The directives before the names of a declaration: ".align 16 .v4 .f32". */
struct declared {
    uint64_t bytes, vector, alignment;
};

/* Bytes of a type, without its dot: b8, u32, f64, f16x2, bf16x2; 0 if it is no type. References to textures, surfaces
 * and samplers have 8. */
static uint64_t type_bytes(const char *type, size_t length) {
    if (is(type, length, "texref") || is(type, length, "surfref") || is(type, length, "samplerref"))
        return 8;
    if (length < 2 || strchr("busf", *type) == NULL)
        return 0;
    const char *digit = type + (type[0] == 'b' && type[1] == 'f' ? 2 : 1);
    uint64_t bits = 0, times = 1;
    for (; is_digit(*digit) && bits < 4096; digit++)
        bits = bits * 10 + (uint64_t)(*digit - '0');
    if (digit[0] == 'x' && is_digit(digit[1])) {
        times = (uint64_t)(digit[1] - '0');
        digit += 2;
    }
    if (bits == 0 || digit != type + length)
        return 0;
    return (bits >= 8 ? bits / 8 : 1) * times;
}

/* Skips a pair of brackets and what is in it. */
static void skip_brackets(struct reader *reader, char open, char close) {
    uint64_t depth = 0;
    if (peek(reader) != open)
        return;
    for (; *reader->at != '\0'; reader->at++) {
        depth += *reader->at == open;
        depth -= *reader->at == close;
        if (depth == 0) {
            reader->at++;
            return;
        }
    }
    reader->failed = true;
}

static void read_directive(struct reader *reader, struct declared *declared) {
    const char *word = reader->at;
    reader->at = skip_word(word);
    size_t length = (size_t)(reader->at - word);
    uint64_t bytes = type_bytes(word, length);
    if (bytes != 0)
        declared->bytes = bytes;
    else if (is(word, length, "align"))
        declared->alignment = read_number(reader);
    else if (length == 2 && word[0] == 'v' && is_digit(word[1]))
        declared->vector = (uint64_t)(word[1] - '0');
    else if (is(word, length, "attribute"))
        skip_brackets(reader, '(', ')');
    else
        reader->failed = true;
}

static struct declared read_directives(struct reader *reader) {
    struct declared declared = {1, 1, 1};
    skip_brackets(reader, '[', ']'); /* the bank of constants */
    while (!reader->failed && accept(reader, '.'))
        read_directive(reader, &declared);
    return declared;
}

/* Skips an initializer. Returns its length in characters, which is at least the number of its values. */
static uint64_t skip_value(struct reader *reader) {
    const char *from = reader->at;
    uint64_t depth = 0;
    for (; *reader->at != '\0' && *reader->at != ';' && (depth != 0 || *reader->at != ','); reader->at++) {
        depth += *reader->at == '{' || *reader->at == '(';
        if (depth != 0 && (*reader->at == '}' || *reader->at == ')'))
            depth--;
    }
    return (uint64_t)(reader->at - from);
}

/* The number of elements of "name[4][16]" or "name<8>" (eight variables); an upper bound for "name[] = {1, 2, 3}". */
static uint64_t read_variable(struct reader *reader) {
    uint64_t count = 1;
    bool open = false;
    reader->failed = reader->failed || !is_letter(peek(reader));
    reader->at = skip_word(reader->at);
    if (!reader->failed && accept(reader, '<')) {
        count = read_number(reader);
        reader->failed = reader->failed || !accept(reader, '>');
    }
    while (!reader->failed && accept(reader, '[')) {
        if (accept(reader, ']')) {
            open = true;
            continue;
        }
        uint64_t more = read_number(reader);
        reader->failed = reader->failed || !accept(reader, ']');
        count = reader->failed ? count : product(count, more);
    }
    if (!reader->failed && accept(reader, '=')) {
        uint64_t values = skip_value(reader) + 1;
        count = open ? product(count, values) : count;
    }
    return count;
}

/* An upper bound for any placement of a module's variables: a large one takes whole blocks, small ones share blocks,
 * with gaps. */
static void add_variable(struct image_size *size, const struct declared *declared, uint64_t count) {
    uint64_t bytes = product(product(declared->bytes, declared->vector), count);
    if (bytes >= UINT64_MAX / 4) {
        size->data = UINT64_MAX;
        return;
    }
    add_to(&size->data, bytes >= BLOCK_BYTES / 2 ? pages_of(bytes) << REGION_PAGE_SHIFT : 2 * bytes);
    add_to(&size->data, declared->alignment);
}

/* Parses " .align 4 .b8 a[8], b = 1, c[] = {1, 2};" after .global, and returns the end. */
static const char *add_declaration(struct image_size *size, const char *from, bool in_function) {
    struct reader reader = {.at = from};
    struct declared declared = read_directives(&reader);
    if (!reader.failed)
        do
            add_variable(size, &declared, read_variable(&reader));
        while (!reader.failed && accept(&reader, ','));
    bool unread = reader.failed || peek(&reader) != ';';
    size->hidden = size->hidden || (unread && in_function);
    size->malformed = size->malformed || (unread && !in_function);
    return reader.at;
}

/* --- finding declarations ----------------------------------------------------------------------------------------- */

/* Instructions that name a state space, as ld.global.u32 does. */
static const char *const instructions[] = {
    "ld",        "ldu",   "st",           "atom",     "red",      "prefetch",      "prefetchu",
    "isspacep",  "cvta",  "cp",           "mbarrier", "multimem", "applypriority", "discard",
    "tensormap", "fence", "createpolicy", "wmma",     "tcgen05"};

#define INSTRUCTION_MAX 256 /* characters, more than any instruction has */

/* Whether the dotted word that ends here is an instruction. */
static bool in_instruction(const char *text, const char *end) {
    const char *word = end;
    while (word > text && end - word < INSTRUCTION_MAX && (in_word(word[-1]) || word[-1] == '.' || word[-1] == ':'))
        word--;
    size_t length = (size_t)(skip_word(word) - word);
    for (size_t i = 0; i < sizeof instructions / sizeof instructions[0]; i++)
        if (is(word, length, instructions[i]))
            return true;
    return false;
}

/* Whether the state space is that of a pointer parameter: ".param .u64 .ptr .global p". */
static bool after_ptr(const char *text, const char *end) {
    while (end > text && is_space(end[-1]))
        end--;
    return end - text >= 4 && strncmp(end - 4, ".ptr", 4) == 0;
}

/* How many more braces are opened in a text than closed. */
static int opened_in(const char *from, const char *end) {
    int opened = 0;
    for (; from < end; from++)
        opened += (*from == '{') - (*from == '}');
    return opened;
}

static void add_variables(struct image_size *size, const char *text, const char *space) {
    const char *counted = text;
    int depth = 0;
    for (const char *at = text; (at = strstr(at, space)) != NULL;) {
        const char *found = at;
        at += strlen(space);
        depth += opened_in(counted, found);
        counted = found;
        if (!in_word(*at) && !in_instruction(text, found) && !after_ptr(text, found))
            at = add_declaration(size, at, depth > 0);
    }
}

/* --- the text ----------------------------------------------------------------------------------------------------- */

/* The end of a string, which must be in one line; NULL if there is none. */
static const char *string_end(const char *from, const char *end) {
    for (const char *at = from + 1; at < end && *at != '\n'; at++)
        if (*at == '"')
            return at + 1;
    return NULL;
}

static const char *comment_end(const char *from, const char *end) {
    if (end - from < 2 || from[0] != '/' || (from[1] != '/' && from[1] != '*'))
        return NULL;
    bool line = from[1] == '/';
    for (const char *at = from + 2; at < end; at++) {
        if (line && *at == '\n')
            return at;
        if (!line && at[0] == '*' && end - at >= 2 && at[1] == '/')
            return at + 2;
    }
    return end;
}

/* The end of a line that begins with #; NULL if it does not. */
static const char *directive_end(const char *from, const char *end) {
    const char *line_end = *from == '#' ? memchr(from, '\n', (size_t)(end - from)) : NULL;
    return line_end == NULL && *from == '#' ? end : line_end;
}

/* Whether such a line only tells where the text is from: "# 1", "#line 1", "#file". Others may change what follows. */
static bool is_marker(const char *from, const char *end) {
    const char *word = from + 1;
    while (word < end && is_space(*word))
        word++;
    size_t length = 0;
    while (word + length < end && in_word(word[length]))
        length++;
    return length == 0 || is_digit(*word) || is(word, length, "line") || is(word, length, "file");
}

/* Replaces comments, strings and lines that begin with # by as many spaces: a string may be an initializer, whose length
 * counts. False if such a line may change what follows. */
static bool blank(char *text, size_t length) {
    const char *end = text + length;
    bool plain = true;
    for (char *at = text; at < end;) {
        const char *after = *at == '"' ? string_end(at, end) : comment_end(at, end),
                   *directive = directive_end(at, end);
        if (directive != NULL)
            plain = is_marker(at, after = directive) && plain;
        size_t blanks = after != NULL ? (size_t)(after - at) : 0;
        memset(at, ' ', blanks);
        at += blanks != 0 ? blanks : 1;
    }
    return plain;
}

struct image_size image_ptx_size(const char *text, size_t length) {
    struct image_size size = {.code = length};
    size_t room = length + 1;
    char *copy = mapped_new(room);
    if (copy == NULL)
        return (struct image_size){.code = size.code, .data = UINT64_MAX}; /* more than any limit */
    memcpy(copy, text, length);
    size.malformed = !blank(copy, length);
    add_variables(&size, copy, ".global");
    add_variables(&size, copy, ".const");
    if (strstr(copy, ".managed") != NULL) /* the driver places these apart */
        add_to(&size.data, BLOCK_BYTES);
    mapped_free(copy, room);
    if (size.malformed)
        explain(CAUSE_PTX,
                "cannot load PTX: it declares a variable whose size cannot be read, and which would not count "
                "toward the limit; write sizes as numbers");
    return size;
}
