/* The rows of cuda_sim_texture.h; see entry_points.h. */
#ifndef SIMGPU_ENTRY_POINTS_TEXTURE_H
#define SIMGPU_ENTRY_POINTS_TEXTURE_H

/* clang-format off */
#define ENTRY_POINTS_TEXTURE(ENTRY, STREAM)                                                                            \
    ENTRY(cuDeviceGetTexture1DLinearMaxWidth, 11010, cuDeviceGetTexture1DLinearMaxWidth)                               \
    ENTRY(cuModuleGetSurfRef, 3000, cuModuleGetSurfRef)                                                                \
    ENTRY(cuModuleGetTexRef, 2000, cuModuleGetTexRef)                                                                  \
    ENTRY(cuSurfObjectCreate, 5000, cuSurfObjectCreate)                                                                \
    ENTRY(cuSurfObjectDestroy, 5000, cuSurfObjectDestroy)                                                              \
    ENTRY(cuSurfObjectGetResourceDesc, 5000, cuSurfObjectGetResourceDesc)                                              \
    ENTRY(cuSurfRefGetArray, 3000, cuSurfRefGetArray)                                                                  \
    ENTRY(cuSurfRefSetArray, 3000, cuSurfRefSetArray)                                                                  \
    ENTRY(cuTexObjectCreate, 5000, cuTexObjectCreate)                                                                  \
    ENTRY(cuTexObjectDestroy, 5000, cuTexObjectDestroy)                                                                \
    ENTRY(cuTexObjectGetResourceDesc, 5000, cuTexObjectGetResourceDesc)                                                \
    ENTRY(cuTexObjectGetResourceViewDesc, 5000, cuTexObjectGetResourceViewDesc)                                        \
    ENTRY(cuTexObjectGetTextureDesc, 5000, cuTexObjectGetTextureDesc)                                                  \
    ENTRY(cuTexRefCreate, 2000, cuTexRefCreate)                                                                        \
    ENTRY(cuTexRefDestroy, 2000, cuTexRefDestroy)                                                                      \
    ENTRY(cuTexRefGetAddress, 2000, cuTexRefGetAddress)                                                                \
    ENTRY(cuTexRefGetAddress, 3020, cuTexRefGetAddress_v2)                                                             \
    ENTRY(cuTexRefGetAddressMode, 2000, cuTexRefGetAddressMode)                                                        \
    ENTRY(cuTexRefGetArray, 2000, cuTexRefGetArray)                                                                    \
    ENTRY(cuTexRefGetBorderColor, 8000, cuTexRefGetBorderColor)                                                        \
    ENTRY(cuTexRefGetFilterMode, 2000, cuTexRefGetFilterMode)                                                          \
    ENTRY(cuTexRefGetFlags, 2000, cuTexRefGetFlags)                                                                    \
    ENTRY(cuTexRefGetFormat, 2000, cuTexRefGetFormat)                                                                  \
    ENTRY(cuTexRefGetMaxAnisotropy, 5000, cuTexRefGetMaxAnisotropy)                                                    \
    ENTRY(cuTexRefGetMipmapFilterMode, 5000, cuTexRefGetMipmapFilterMode)                                              \
    ENTRY(cuTexRefGetMipmapLevelBias, 5000, cuTexRefGetMipmapLevelBias)                                                \
    ENTRY(cuTexRefGetMipmapLevelClamp, 5000, cuTexRefGetMipmapLevelClamp)                                              \
    ENTRY(cuTexRefGetMipmappedArray, 5000, cuTexRefGetMipmappedArray)                                                  \
    ENTRY(cuTexRefSetAddress, 2000, cuTexRefSetAddress)                                                                \
    ENTRY(cuTexRefSetAddress, 3020, cuTexRefSetAddress_v2)                                                             \
    ENTRY(cuTexRefSetAddress2D, 2020, cuTexRefSetAddress2D)                                                            \
    ENTRY(cuTexRefSetAddress2D, 3020, cuTexRefSetAddress2D_v2)                                                         \
    ENTRY(cuTexRefSetAddress2D, 4010, cuTexRefSetAddress2D_v3)                                                         \
    ENTRY(cuTexRefSetAddressMode, 2000, cuTexRefSetAddressMode)                                                        \
    ENTRY(cuTexRefSetArray, 2000, cuTexRefSetArray)                                                                    \
    ENTRY(cuTexRefSetBorderColor, 8000, cuTexRefSetBorderColor)                                                        \
    ENTRY(cuTexRefSetFilterMode, 2000, cuTexRefSetFilterMode)                                                          \
    ENTRY(cuTexRefSetFlags, 2000, cuTexRefSetFlags)                                                                    \
    ENTRY(cuTexRefSetFormat, 2000, cuTexRefSetFormat)                                                                  \
    ENTRY(cuTexRefSetMaxAnisotropy, 5000, cuTexRefSetMaxAnisotropy)                                                    \
    ENTRY(cuTexRefSetMipmapFilterMode, 5000, cuTexRefSetMipmapFilterMode)                                              \
    ENTRY(cuTexRefSetMipmapLevelBias, 5000, cuTexRefSetMipmapLevelBias)                                                \
    ENTRY(cuTexRefSetMipmapLevelClamp, 5000, cuTexRefSetMipmapLevelClamp)                                              \
    ENTRY(cuTexRefSetMipmappedArray, 5000, cuTexRefSetMipmappedArray)
/* clang-format on */

#endif
