/* The rows of cuda_sim_memop.h; see entry_points.h. */
#ifndef SIMGPU_ENTRY_POINTS_MEMOP_H
#define SIMGPU_ENTRY_POINTS_MEMOP_H

/* clang-format off */
#define ENTRY_POINTS_MEMOP(ENTRY, STREAM)                                                                              \
    ASYNC_ROW(STREAM, cuStreamWaitValue32, 8000, cuStreamWaitValue32)                                                  \
    ASYNC_ROW(STREAM, cuStreamWaitValue32, 11070, cuStreamWaitValue32_v2)                                              \
    ASYNC_ROW(STREAM, cuStreamWaitValue64, 9000, cuStreamWaitValue64)                                                  \
    ASYNC_ROW(STREAM, cuStreamWaitValue64, 11070, cuStreamWaitValue64_v2)                                              \
    ASYNC_ROW(STREAM, cuStreamWriteValue32, 8000, cuStreamWriteValue32)                                                \
    ASYNC_ROW(STREAM, cuStreamWriteValue32, 11070, cuStreamWriteValue32_v2)                                            \
    ASYNC_ROW(STREAM, cuStreamWriteValue64, 9000, cuStreamWriteValue64)                                                \
    ASYNC_ROW(STREAM, cuStreamWriteValue64, 11070, cuStreamWriteValue64_v2)                                            \
    ASYNC_ROW(STREAM, cuStreamBatchMemOp, 8000, cuStreamBatchMemOp)                                                    \
    ASYNC_ROW(STREAM, cuStreamBatchMemOp, 11070, cuStreamBatchMemOp_v2)                                                \
    ENTRY(cuGraphAddBatchMemOpNode, 11070, cuGraphAddBatchMemOpNode)                                                   \
    ENTRY(cuGraphBatchMemOpNodeGetParams, 11070, cuGraphBatchMemOpNodeGetParams)                                       \
    ENTRY(cuGraphBatchMemOpNodeSetParams, 11070, cuGraphBatchMemOpNodeSetParams)                                       \
    ENTRY(cuGraphExecBatchMemOpNodeSetParams, 11070, cuGraphExecBatchMemOpNodeSetParams)                               \
    ENTRY(cuImportExternalSemaphore, 10000, cuImportExternalSemaphore)                                                 \
    ENTRY(cuDestroyExternalSemaphore, 10000, cuDestroyExternalSemaphore)                                               \
    ASYNC_ROW(STREAM, cuSignalExternalSemaphoresAsync, 10000, cuSignalExternalSemaphoresAsync)                         \
    ASYNC_ROW(STREAM, cuWaitExternalSemaphoresAsync, 10000, cuWaitExternalSemaphoresAsync)                             \
    ENTRY(cuGraphAddExternalSemaphoresSignalNode, 11020, cuGraphAddExternalSemaphoresSignalNode)                       \
    ENTRY(cuGraphExternalSemaphoresSignalNodeGetParams, 11020, cuGraphExternalSemaphoresSignalNodeGetParams)           \
    ENTRY(cuGraphExternalSemaphoresSignalNodeSetParams, 11020, cuGraphExternalSemaphoresSignalNodeSetParams)           \
    ENTRY(cuGraphExecExternalSemaphoresSignalNodeSetParams, 11020, cuGraphExecExternalSemaphoresSignalNodeSetParams)   \
    ENTRY(cuGraphAddExternalSemaphoresWaitNode, 11020, cuGraphAddExternalSemaphoresWaitNode)                           \
    ENTRY(cuGraphExternalSemaphoresWaitNodeGetParams, 11020, cuGraphExternalSemaphoresWaitNodeGetParams)               \
    ENTRY(cuGraphExternalSemaphoresWaitNodeSetParams, 11020, cuGraphExternalSemaphoresWaitNodeSetParams)               \
    ENTRY(cuGraphExecExternalSemaphoresWaitNodeSetParams, 11020, cuGraphExecExternalSemaphoresWaitNodeSetParams)
/* clang-format on */

#endif
