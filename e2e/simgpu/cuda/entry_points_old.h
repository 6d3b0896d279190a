/* The rows of cuda_sim_old.h; see entry_points.h. */
#ifndef SIMGPU_ENTRY_POINTS_OLD_H
#define SIMGPU_ENTRY_POINTS_OLD_H

/* clang-format off */
/* Per-thread default streams are newer than these functions. */
#define OLD_ROW(STREAM, name, since, per_thread) STREAM(name, since, name, 7000, per_thread)

#define ENTRY_POINTS_OLD(ENTRY, STREAM)                                                                                \
    OLD_ROW(STREAM, cuMemcpyHtoD, 2000, cuMemcpyHtoD_v2_ptds)                                                          \
    OLD_ROW(STREAM, cuMemcpyDtoH, 2000, cuMemcpyDtoH_v2_ptds)                                                          \
    OLD_ROW(STREAM, cuMemcpyDtoD, 2000, cuMemcpyDtoD_v2_ptds)                                                          \
    OLD_ROW(STREAM, cuMemcpyDtoA, 2000, cuMemcpyDtoA_v2_ptds)                                                          \
    OLD_ROW(STREAM, cuMemcpyAtoD, 2000, cuMemcpyAtoD_v2_ptds)                                                          \
    OLD_ROW(STREAM, cuMemcpyHtoA, 2000, cuMemcpyHtoA_v2_ptds)                                                          \
    OLD_ROW(STREAM, cuMemcpyAtoH, 2000, cuMemcpyAtoH_v2_ptds)                                                          \
    OLD_ROW(STREAM, cuMemcpyAtoA, 2000, cuMemcpyAtoA_v2_ptds)                                                          \
    OLD_ROW(STREAM, cuMemcpy2D, 2000, cuMemcpy2D_v2_ptds)                                                              \
    OLD_ROW(STREAM, cuMemcpy2DUnaligned, 2000, cuMemcpy2DUnaligned_v2_ptds)                                            \
    OLD_ROW(STREAM, cuMemcpy3D, 2000, cuMemcpy3D_v2_ptds)                                                              \
    OLD_ROW(STREAM, cuMemcpyHtoDAsync, 2000, cuMemcpyHtoDAsync_v2_ptsz)                                                \
    OLD_ROW(STREAM, cuMemcpyDtoHAsync, 2000, cuMemcpyDtoHAsync_v2_ptsz)                                                \
    OLD_ROW(STREAM, cuMemcpyDtoDAsync, 3000, cuMemcpyDtoDAsync_v2_ptsz)                                                \
    OLD_ROW(STREAM, cuMemcpyHtoAAsync, 2000, cuMemcpyHtoAAsync_v2_ptsz)                                                \
    OLD_ROW(STREAM, cuMemcpyAtoHAsync, 2000, cuMemcpyAtoHAsync_v2_ptsz)                                                \
    OLD_ROW(STREAM, cuMemcpy2DAsync, 2000, cuMemcpy2DAsync_v2_ptsz)                                                    \
    OLD_ROW(STREAM, cuMemcpy3DAsync, 2000, cuMemcpy3DAsync_v2_ptsz)                                                    \
    OLD_ROW(STREAM, cuMemsetD8, 2000, cuMemsetD8_v2_ptds)                                                              \
    OLD_ROW(STREAM, cuMemsetD16, 2000, cuMemsetD16_v2_ptds)                                                            \
    OLD_ROW(STREAM, cuMemsetD32, 2000, cuMemsetD32_v2_ptds)                                                            \
    OLD_ROW(STREAM, cuMemsetD2D8, 2000, cuMemsetD2D8_v2_ptds)                                                          \
    OLD_ROW(STREAM, cuMemsetD2D16, 2000, cuMemsetD2D16_v2_ptds)                                                        \
    OLD_ROW(STREAM, cuMemsetD2D32, 2000, cuMemsetD2D32_v2_ptds)                                                        \
    ENTRY(cuFuncSetBlockShape, 2000, cuFuncSetBlockShape)                                                              \
    ENTRY(cuFuncSetSharedSize, 2000, cuFuncSetSharedSize)                                                              \
    ENTRY(cuParamSetSize, 2000, cuParamSetSize)                                                                        \
    ENTRY(cuParamSeti, 2000, cuParamSeti)                                                                              \
    ENTRY(cuParamSetf, 2000, cuParamSetf)                                                                              \
    ENTRY(cuParamSetv, 2000, cuParamSetv)                                                                              \
    ENTRY(cuParamSetTexRef, 2000, cuParamSetTexRef)                                                                    \
    ENTRY(cuLaunch, 2000, cuLaunch)                                                                                    \
    ENTRY(cuLaunchGrid, 2000, cuLaunchGrid)                                                                            \
    ENTRY(cuLaunchGridAsync, 2000, cuLaunchGridAsync)
/* clang-format on */

#endif
