/* Attributes of kernel nodes. What they say of how a kernel runs plays no part here, but for cooperative launches. */
#ifndef SIMGPU_GRAPH_ATTRIBUTES_H
#define SIMGPU_GRAPH_ATTRIBUTES_H

#include "cuda/driver.h"

/* All zero where nothing was set. */
struct kernel_attributes {
    CUaccessPolicyWindow window;
    int cooperative;
    unsigned cluster[3];
    CUclusterSchedulingPolicy cluster_policy;
    int priority;
    CUlaunchMemSyncDomainMap domains; /* `remote` less 1, which is its default */
    CUlaunchMemSyncDomain domain;
};

/* Those of a launch that nodes have too; the others say nothing about a kernel itself. */
void kernel_attributes_of_launch(const CUlaunchAttribute *given, unsigned count, struct kernel_attributes *attributes);

#endif
