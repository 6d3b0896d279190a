#include "array_format.h"

/* clang-format off */
#define PLAIN(name, bytes) {CU_AD_FORMAT_##name, 0, 1, 1, bytes, 0, {{0}}},
#define FIXED(name, channels, bytes) {CU_AD_FORMAT_##name, channels, 1, 1, bytes, 0, {{0}}},
#define BLOCK(name, channels, bytes) {CU_AD_FORMAT_##name, channels, 4, 4, bytes, 0, {{0}}},
/* Two texels that share their colour. */
#define PAIR(name, bytes) {CU_AD_FORMAT_##name, 2, 2, 1, bytes, 0, {{0}}},
/* Brightness, then colour for every second texel of a row, and of every row or every second one. */
#define TWO_PLANES(name, plane, bytes, y)                                                                              \
    {CU_AD_FORMAT_##name, 3, 1, 1, bytes, 2,                                                                           \
     {{CU_AD_FORMAT_##plane, 1, 1, 1}, {CU_AD_FORMAT_##plane, 2, 2, y}}},
#define THREE_PLANES(name, plane, bytes)                                                                               \
    {CU_AD_FORMAT_##name, 3, 1, 1, bytes, 3,                                                                           \
     {{CU_AD_FORMAT_##plane, 1, 1, 1}, {CU_AD_FORMAT_##plane, 1, 1, 1}, {CU_AD_FORMAT_##plane, 1, 1, 1}}},

static const struct array_format formats[] = {
    PLAIN(UNSIGNED_INT8, 1) PLAIN(SIGNED_INT8, 1)
    PLAIN(UNSIGNED_INT16, 2) PLAIN(SIGNED_INT16, 2) PLAIN(HALF, 2)
    PLAIN(UNSIGNED_INT32, 4) PLAIN(SIGNED_INT32, 4) PLAIN(FLOAT, 4)
    FIXED(UNORM_INT8X1, 1, 1) FIXED(UNORM_INT8X2, 2, 2) FIXED(UNORM_INT8X4, 4, 4)
    FIXED(UNORM_INT16X1, 1, 2) FIXED(UNORM_INT16X2, 2, 4) FIXED(UNORM_INT16X4, 4, 8)
    FIXED(SNORM_INT8X1, 1, 1) FIXED(SNORM_INT8X2, 2, 2) FIXED(SNORM_INT8X4, 4, 4)
    FIXED(SNORM_INT16X1, 1, 2) FIXED(SNORM_INT16X2, 2, 4) FIXED(SNORM_INT16X4, 4, 8)
    BLOCK(BC1_UNORM, 4, 8) BLOCK(BC1_UNORM_SRGB, 4, 8)
    BLOCK(BC2_UNORM, 4, 16) BLOCK(BC2_UNORM_SRGB, 4, 16)
    BLOCK(BC3_UNORM, 4, 16) BLOCK(BC3_UNORM_SRGB, 4, 16)
    BLOCK(BC4_UNORM, 1, 8) BLOCK(BC4_SNORM, 1, 8)
    BLOCK(BC5_UNORM, 2, 16) BLOCK(BC5_SNORM, 2, 16)
    BLOCK(BC6H_UF16, 3, 16) BLOCK(BC6H_SF16, 3, 16)
    BLOCK(BC7_UNORM, 4, 16) BLOCK(BC7_UNORM_SRGB, 4, 16)
    PAIR(YUY2, 4) PAIR(Y210, 8) PAIR(Y216, 8)
    FIXED(AYUV, 4, 4) FIXED(Y410, 4, 4) FIXED(Y416, 4, 8)
    TWO_PLANES(NV12, UNSIGNED_INT8, 1, 2) TWO_PLANES(NV16, UNSIGNED_INT8, 1, 1)
    TWO_PLANES(P010, UNSIGNED_INT16, 2, 2) TWO_PLANES(P016, UNSIGNED_INT16, 2, 2)
    TWO_PLANES(P210, UNSIGNED_INT16, 2, 1) TWO_PLANES(P216, UNSIGNED_INT16, 2, 1)
    THREE_PLANES(Y444_PLANAR8, UNSIGNED_INT8, 1) THREE_PLANES(Y444_PLANAR10, UNSIGNED_INT16, 2)
};
/* clang-format on */

const struct array_format *array_format(CUarray_format format) {
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        if (formats[i].format == format)
            return &formats[i];
    }
    return NULL;
}
