/* UUIDs made of names: version 5 of RFC 9562, which is SHA-1. */
#include "uuid5.h"

#include <string.h>

static uint32_t rotate(uint32_t x, unsigned bits) {
    return x << bits | x >> (32 - bits);
}

static void sha1_block(uint32_t h[5], const uint8_t block[64]) {
    uint32_t w[80], a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];

    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
               block[4 * i + 3];
    for (int i = 16; i < 80; i++)
        w[i] = rotate(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    for (int i = 0; i < 80; i++) {
        uint32_t f = i < 20 ? (b & c) | (~b & d) : i >= 40 && i < 60 ? (b & c) | (b & d) | (c & d) : b ^ c ^ d;
        uint32_t k = i < 20 ? 0x5a827999 : i < 40 ? 0x6ed9eba1 : i < 60 ? 0x8f1bbcdc : 0xca62c1d6;
        uint32_t t = rotate(a, 5) + f + e + k + w[i];

        e = d;
        d = c;
        c = rotate(b, 30);
        b = a;
        a = t;
    }
    h[0] += a;
    h[1] += b;
    h[2] += c;
    h[3] += d;
    h[4] += e;
}

void uuid5(const uint8_t space[16], const char *name, uint8_t uuid[16]) {
    uint32_t h[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
    uint8_t block[64] = {0};
    size_t length = strnlen(name, 64 - 16 - 9), bits = (16 + length) * 8;

    /* One block is enough for a name as short as ours. */
    memcpy(block, space, 16);
    memcpy(block + 16, name, length);
    block[16 + length] = 0x80;
    block[62] = (uint8_t)(bits >> 8);
    block[63] = (uint8_t)bits;
    sha1_block(h, block);
    for (int i = 0; i < 16; i++)
        uuid[i] = (uint8_t)(h[i / 4] >> (24 - 8 * (i % 4)));
    uuid[6] = (uint8_t)((uuid[6] & 0x0f) | 0x50);
    uuid[8] = (uint8_t)((uuid[8] & 0x3f) | 0x80);
}
