#include "graph_attributes.h"

#include "graph.h"

/* ---- Under the mutex ---- */

static bool is_kernel(CUgraphNode node) {
    return node_valid(node) && node->type == CU_GRAPH_NODE_TYPE_KERNEL;
}

/* Writes no more than the attribute has: the union was smaller in older versions of CUDA. */
static CUresult get_locked(const struct kernel_attributes *a, CUkernelNodeAttrID attr, CUkernelNodeAttrValue *value) {
    switch (attr) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
        value->accessPolicyWindow = a->window;
        return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
        value->cooperative = a->cooperative;
        return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
        for (int i = 0; i < 3; i++)
            value->clusterDim[i] = a->cluster[i];
        return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        value->clusterSchedulingPolicyPreference = a->cluster_policy;
        return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
        value->priority = a->priority;
        return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
        value->memSyncDomainMap =
            (CUlaunchMemSyncDomainMap){a->domains.default_, (unsigned char)(a->domains.remote + 1)};
        return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
        value->memSyncDomain = a->domain;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static bool window_valid(const CUaccessPolicyWindow *w) {
    return w->hitRatio >= 0 && w->hitRatio <= 1 && (unsigned)w->hitProp <= CU_ACCESS_PROPERTY_PERSISTING &&
           (unsigned)w->missProp <= CU_ACCESS_PROPERTY_STREAMING;
}

/* A cluster divides the grid; none at all is 0 everywhere. */
static bool cluster_valid(const CUDA_KERNEL_NODE_PARAMS *k, const unsigned cluster[3]) {
    const unsigned grid[3] = {k->gridDimX, k->gridDimY, k->gridDimZ};

    if (cluster[0] == 0 && cluster[1] == 0 && cluster[2] == 0)
        return true;
    for (int i = 0; i < 3; i++) {
        if (cluster[i] == 0 || grid[i] % cluster[i] != 0)
            return false;
    }
    return true;
}

static CUresult set(struct kernel_attributes *a, CUkernelNodeAttrID attr, const CUkernelNodeAttrValue *value) {
    switch (attr) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
        REQUIRE(window_valid(&value->accessPolicyWindow), CUDA_ERROR_INVALID_VALUE);
        a->window = value->accessPolicyWindow;
        return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
        REQUIRE(value->cooperative == 0 || value->cooperative == 1, CUDA_ERROR_INVALID_VALUE);
        a->cooperative = value->cooperative;
        return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
        for (int i = 0; i < 3; i++)
            a->cluster[i] = value->clusterDim[i];
        return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        REQUIRE((unsigned)value->clusterSchedulingPolicyPreference <= CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING,
                CUDA_ERROR_INVALID_VALUE);
        a->cluster_policy = value->clusterSchedulingPolicyPreference;
        return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
        a->priority = value->priority;
        return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
        a->domains = (CUlaunchMemSyncDomainMap){value->memSyncDomainMap.default_,
                                                (unsigned char)(value->memSyncDomainMap.remote - 1)};
        return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
        REQUIRE((unsigned)value->memSyncDomain <= CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE, CUDA_ERROR_INVALID_VALUE);
        a->domain = value->memSyncDomain;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult set_locked(struct CUgraphNode_st *node, CUkernelNodeAttrID attr, const CUkernelNodeAttrValue *value) {
    REQUIRE(attr != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION || cluster_valid(&node->work.kernel, value->clusterDim),
            CUDA_ERROR_INVALID_VALUE);
    return set(&node->attributes, attr, value);
}

void kernel_attributes_of_launch(const CUlaunchAttribute *given, unsigned count, struct kernel_attributes *attributes) {
    for (unsigned i = 0; i < count; i++)
        set(attributes, (CUkernelNodeAttrID)given[i].id, &given[i].value);
}

/* ---- The API ---- */

CUresult cuGraphKernelNodeGetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr, CUkernelNodeAttrValue *value_out) {
    ENTER(value_out != NULL && is_kernel(hNode));
    LEAVE(get_locked(&hNode->attributes, attr, value_out));
}

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr, const CUkernelNodeAttrValue *value) {
    ENTER(value != NULL && is_kernel(hNode));
    LEAVE(set_locked(hNode, attr, value));
}

CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode dst, CUgraphNode src) {
    ENTER(is_kernel(dst) && is_kernel(src));
    dst->attributes = src->attributes;
    LEAVE(CUDA_SUCCESS);
}
