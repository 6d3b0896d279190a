/*
 * The contents of compressed entries of fat binaries. nvcc compresses them as LZ4 blocks: sequences of a token, whose halves
 * are the length of the literals and that of the match less four, further bytes of either length, the literals, and how far
 * back the match begins. The last sequence has no match.
 */
#include "unpack.h"

#include <stdlib.h>
#include <string.h>

#define SHORTEST_MATCH 4
#define MOST_OF_A_BYTE 255 /* of contents: what a byte of a match's length stands for */
#define FURTHER 15         /* a length of so much goes on in the next bytes */

struct reader {
    const unsigned char *at, *end;
};

static bool read_length(struct reader *from, size_t *length) {
    unsigned char byte = UINT8_MAX;

    if (*length != FURTHER)
        return true;
    for (; byte == UINT8_MAX; *length += byte) {
        if (from->at == from->end)
            return false;
        byte = *from->at++;
    }
    return true;
}

static bool copy_literals(struct reader *from, unsigned char **to, const unsigned char *room_end, size_t length) {
    if (!read_length(from, &length) || length > (size_t)(from->end - from->at) || length > (size_t)(room_end - *to))
        return false;
    memcpy(*to, from->at, length);
    from->at += length;
    *to += length;
    return true;
}

static bool copy_match(struct reader *from, const unsigned char *begin, unsigned char **to,
                       const unsigned char *room_end, size_t length) {
    size_t back;

    if (from->end - from->at < 2)
        return false;
    back = from->at[0] | (size_t)from->at[1] << 8;
    from->at += 2;
    if (!read_length(from, &length))
        return false;
    length += SHORTEST_MATCH;
    if (back == 0 || back > (size_t)(*to - begin) || length > (size_t)(room_end - *to))
        return false;
    /* Byte by byte: a match may go on in what it writes. */
    for (size_t i = 0; i < length; i++, (*to)++)
        **to = *(*to - back);
    return true;
}

char *unpack_lz4(const void *packed, size_t packed_bytes, size_t unpacked_bytes) {
    struct reader from = {packed, (const unsigned char *)packed + packed_bytes};
    unsigned char *begin, *to, *end;

    if (unpacked_bytes / MOST_OF_A_BYTE > packed_bytes || (begin = malloc(unpacked_bytes + 1)) == NULL)
        return NULL;
    to = begin;
    end = begin + unpacked_bytes;
    while (from.at < from.end) {
        unsigned token = *from.at++;

        if (!copy_literals(&from, &to, end, token >> 4) ||
            (from.at < from.end && !copy_match(&from, begin, &to, end, token & FURTHER)))
            break;
    }
    if (from.at != from.end || to != end) {
        free(begin);
        return NULL;
    }
    *end = '\0';
    return (char *)begin;
}
