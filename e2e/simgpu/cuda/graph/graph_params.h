/*
 * The parameters of nodes. Those that a program gives are checked, and put into a node's work, the same way whether a
 * node is made of them or gets them later, in its graph or in an executable graph.
 */
#ifndef SIMGPU_GRAPH_PARAMS_H
#define SIMGPU_GRAPH_PARAMS_H

#include "graph.h"

/* Kernel parameters as they were before CUDA 12 in the present form. */
CUresult kernel_params_widen(const CUDA_KERNEL_NODE_PARAMS_v1 *params, CUDA_KERNEL_NODE_PARAMS *wide);

CUresult kernel_params_take(const CUDA_KERNEL_NODE_PARAMS *params, union node_work *work);
CUresult copy_params_take(const CUDA_MEMCPY3D *params, CUcontext context, union node_work *work);
CUresult fill_params_take(const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context, union node_work *work);
CUresult host_params_take(const CUDA_HOST_NODE_PARAMS *params, union node_work *work);
CUresult event_take(CUevent event, union node_work *work);
CUresult batch_params_take(const CUDA_BATCH_MEM_OP_NODE_PARAMS *params, union node_work *work);

/*
 * The work that generic parameters describe, of the kinds that can be given to a node later; of child graphs,
 * `work->child` is the program's own.
 */
CUresult node_params_take(const CUgraphNodeParams *params, union node_work *work);

#endif
