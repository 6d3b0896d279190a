/* Conditional nodes, of which the driver has none: a kernel that does nothing decides nothing. */
#include "graph.h"

CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *pHandle_out, CUgraph hGraph, CUcontext ctx,
                                        unsigned int defaultLaunchValue, unsigned int flags) {
    (void)defaultLaunchValue;
    CHECK_AND_ENTER(pHandle_out != NULL && graph_valid(hGraph) && flags <= CU_GRAPH_COND_ASSIGN_DEFAULT &&
                    (ctx == NULL || handle_valid(&contexts, ctx)));
    LEAVE(CUDA_ERROR_NOT_SUPPORTED);
}
