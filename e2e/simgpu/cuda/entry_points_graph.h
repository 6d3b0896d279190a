/* The rows of cuda_sim_node.h; see entry_points.h. */
#ifndef SIMGPU_ENTRY_POINTS_GRAPH_H
#define SIMGPU_ENTRY_POINTS_GRAPH_H

/* clang-format off */
#define ENTRY_POINTS_GRAPH(ENTRY, STREAM)                                                                              \
    ENTRY(cuGraphKernelNodeGetParams, 10000, cuGraphKernelNodeGetParams)                                               \
    ENTRY(cuGraphKernelNodeGetParams, 12000, cuGraphKernelNodeGetParams_v2)                                            \
    ENTRY(cuGraphKernelNodeSetParams, 10000, cuGraphKernelNodeSetParams)                                               \
    ENTRY(cuGraphKernelNodeSetParams, 12000, cuGraphKernelNodeSetParams_v2)                                            \
    ENTRY(cuGraphMemcpyNodeGetParams, 10000, cuGraphMemcpyNodeGetParams)                                               \
    ENTRY(cuGraphMemcpyNodeSetParams, 10000, cuGraphMemcpyNodeSetParams)                                               \
    ENTRY(cuGraphMemsetNodeGetParams, 10000, cuGraphMemsetNodeGetParams)                                               \
    ENTRY(cuGraphMemsetNodeSetParams, 10000, cuGraphMemsetNodeSetParams)                                               \
    ENTRY(cuGraphHostNodeGetParams, 10000, cuGraphHostNodeGetParams)                                                   \
    ENTRY(cuGraphHostNodeSetParams, 10000, cuGraphHostNodeSetParams)                                                   \
    ENTRY(cuGraphEventRecordNodeGetEvent, 11010, cuGraphEventRecordNodeGetEvent)                                       \
    ENTRY(cuGraphEventRecordNodeSetEvent, 11010, cuGraphEventRecordNodeSetEvent)                                       \
    ENTRY(cuGraphEventWaitNodeGetEvent, 11010, cuGraphEventWaitNodeGetEvent)                                           \
    ENTRY(cuGraphEventWaitNodeSetEvent, 11010, cuGraphEventWaitNodeSetEvent)                                           \
    ENTRY(cuGraphNodeSetParams, 12020, cuGraphNodeSetParams)                                                           \
    ENTRY(cuGraphKernelNodeCopyAttributes, 11000, cuGraphKernelNodeCopyAttributes)                                     \
    ENTRY(cuGraphKernelNodeGetAttribute, 11000, cuGraphKernelNodeGetAttribute)                                         \
    ENTRY(cuGraphKernelNodeSetAttribute, 11000, cuGraphKernelNodeSetAttribute)                                         \
    ENTRY(cuGraphExecKernelNodeSetParams, 10010, cuGraphExecKernelNodeSetParams)                                       \
    ENTRY(cuGraphExecKernelNodeSetParams, 12000, cuGraphExecKernelNodeSetParams_v2)                                    \
    ENTRY(cuGraphExecMemcpyNodeSetParams, 10020, cuGraphExecMemcpyNodeSetParams)                                       \
    ENTRY(cuGraphExecMemsetNodeSetParams, 10020, cuGraphExecMemsetNodeSetParams)                                       \
    ENTRY(cuGraphExecHostNodeSetParams, 10020, cuGraphExecHostNodeSetParams)                                           \
    ENTRY(cuGraphExecChildGraphNodeSetParams, 11010, cuGraphExecChildGraphNodeSetParams)                               \
    ENTRY(cuGraphExecEventRecordNodeSetEvent, 11010, cuGraphExecEventRecordNodeSetEvent)                               \
    ENTRY(cuGraphExecEventWaitNodeSetEvent, 11010, cuGraphExecEventWaitNodeSetEvent)                                   \
    ENTRY(cuGraphExecNodeSetParams, 12020, cuGraphExecNodeSetParams)                                                   \
    ENTRY(cuGraphNodeSetEnabled, 11060, cuGraphNodeSetEnabled)                                                         \
    ENTRY(cuGraphNodeGetEnabled, 11060, cuGraphNodeGetEnabled)                                                         \
    ENTRY(cuGraphGetEdges, 12030, cuGraphGetEdges_v2)                                                                  \
    ENTRY(cuGraphNodeGetDependencies, 12030, cuGraphNodeGetDependencies_v2)                                            \
    ENTRY(cuGraphNodeGetDependentNodes, 12030, cuGraphNodeGetDependentNodes_v2)                                        \
    ENTRY(cuGraphRemoveDependencies, 12030, cuGraphRemoveDependencies_v2)                                              \
    ENTRY(cuUserObjectCreate, 11030, cuUserObjectCreate)                                                               \
    ENTRY(cuUserObjectRetain, 11030, cuUserObjectRetain)                                                               \
    ENTRY(cuUserObjectRelease, 11030, cuUserObjectRelease)                                                             \
    ENTRY(cuGraphRetainUserObject, 11030, cuGraphRetainUserObject)                                                     \
    ENTRY(cuGraphReleaseUserObject, 11030, cuGraphReleaseUserObject)                                                   \
    ENTRY(cuGraphDebugDotPrint, 11030, cuGraphDebugDotPrint)                                                           \
    ENTRY(cuGraphConditionalHandleCreate, 12030, cuGraphConditionalHandleCreate)
/* clang-format on */

#endif
