/*
 * Graphs that allocate. When a graph is launched, the driver takes memory from a pool of the device that all graphs
 * share, and keeps it until that is trimmed: see memory/pools.h. What a launch needs at most is read from the graph when
 * it is instantiated.
 *
 * Source: "Graph Memory Nodes" in the CUDA C++ Programming Guide.
 */
#include "context/work.h"
#include "driver/cuda_real.h"
#include "governor/governor.h"
#include "memory/objects.h"
#include "memory/pools.h"
#include "memory/streams.h"
#include "state/contexts.h"
#include "state/gpus.h"
#include "system/mapped.h"

#define DEPTH_MAX 16

/* An instance: what its launches need. */
struct instance {
    uint64_t devices; /* a bit for each that `needs` has something of */
    struct graph_need needs[DEVICES_MAX];
};

/* --- reading a graph ---------------------------------------------------------------------------------------------- */

/* Of a graph whose nodes have one order, memory that it has freed serves the next allocation. Of others, all allocations
 * count together. */
enum what { ALLOCATIONS = 1, FREES = 2, IN_ORDER = ALLOCATIONS | FREES };

struct reading {
    struct instance *instance;
    struct table allocated; /* by address, what is not freed so far; `with`: pages, `references`: device */
};

static bool read_graph(struct reading *reading, CUgraph graph, enum what what, int depth);

static bool read_allocation(struct reading *reading, CUgraphNode node) {
    CUDA_MEM_ALLOC_NODE_PARAMS allocation;
    if (REAL(cuGraphMemAllocNodeGetParams)(node, &allocation) != CUDA_SUCCESS)
        return false;
    int device = allocation.poolProps.location.id;
    if (allocation.poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return true;
    if (device < 0 || device >= DEVICES_MAX)
        return false;
    struct graph_need *need = &reading->instance->needs[device];
    uint64_t pages = pages_of(allocation.bytesize);
    reading->instance->devices |= UINT64_C(1) << device;
    need->left += pages;
    need->most = need->most > need->left ? need->most : need->left;
    return table_put(&reading->allocated,
                     (struct entry){.key = allocation.dptr, .with = pages, .references = (uint32_t)device}) != NULL;
}

/* It may free memory of another graph. */
static bool read_free(struct reading *reading, CUgraphNode node) {
    CUdeviceptr address;
    if (REAL(cuGraphMemFreeNodeGetParams)(node, &address) != CUDA_SUCCESS)
        return false;
    struct entry *freed = table_find(&reading->allocated, address);
    if (freed == NULL)
        return true;
    reading->instance->needs[freed->references].left -= freed->with;
    table_remove(&reading->allocated, freed);
    return true;
}

static bool read_node(struct reading *reading, CUgraphNode node, enum what what, int depth) {
    CUgraphNodeType type;
    CUgraph child;
    if (REAL(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS)
        return false;
    if (type == CU_GRAPH_NODE_TYPE_GRAPH)
        return REAL(cuGraphChildGraphNodeGetGraph)(node, &child) == CUDA_SUCCESS &&
               read_graph(reading, child, what, depth + 1);
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && what & ALLOCATIONS)
        return read_allocation(reading, node);
    return type == CU_GRAPH_NODE_TYPE_MEM_FREE && what & FREES ? read_free(reading, node) : true;
}

static bool read_nodes(struct reading *reading, const CUgraphNode *nodes, size_t count, enum what what, int depth) {
    bool read = true;
    for (size_t i = 0; i < count && read; i++)
        read = read_node(reading, nodes[i], what, depth);
    return read;
}

/* Nodes and edges of most graphs fit into this; more are in mapped memory. */
#define FEW 64

static CUgraphNode *new_list(CUgraphNode *few, size_t count) {
    return count <= FEW ? few : mapped_new(count * sizeof *few);
}

static void free_list(CUgraphNode *list, size_t count) {
    mapped_free(count <= FEW ? NULL : list, count * sizeof *list);
}

/* Puts the nodes that the edges lead to one after the other in order. False if they do not lead to all. */
static bool follow(CUgraphNode *nodes, size_t count, const CUgraphNode *from, const CUgraphNode *to) {
    uintptr_t at = (uintptr_t)nodes[count - 1]; /* of the first node, which no edge leads to, all others cancel out */
    struct table next = {0};
    bool all = true;
    for (size_t i = 0; i < count - 1 && all; i++) {
        at ^= (uintptr_t)nodes[i] ^ (uintptr_t)to[i];
        all = table_find(&next, (uintptr_t)from[i]) == NULL &&
              table_put(&next, (struct entry){.key = (uintptr_t)from[i], .with = (uintptr_t)to[i]}) != NULL;
    }
    for (size_t i = 0; i < count && all; i++) {
        const struct entry *edge = table_find(&next, at);
        nodes[i] = (CUgraphNode)at; /* NOLINT(performance-no-int-to-ptr) */
        all = edge != NULL || i == count - 1;
        at = edge != NULL ? edge->with : 0;
    }
    mapped_free(next.entries, next.capacity * sizeof *next.entries);
    return all;
}

static bool are_in_order(const CUgraphNode *nodes, size_t edges, const CUgraphNode *from, const CUgraphNode *to) {
    size_t i = 0;
    while (i < edges && from[i] == nodes[i] && to[i] == nodes[i + 1])
        i++;
    return i == edges;
}

/* Puts nodes in order, of which each comes after one other. False if they have another order, or none: then they may be
 * anything. */
static bool put_in_order(CUgraph graph, CUgraphNode *nodes, size_t count) {
    CUgraphNode few_from[FEW], few_to[FEW];
    size_t edges = 0;
    if (count < 2 || REAL(cuGraphGetEdges)(graph, NULL, NULL, &edges) != CUDA_SUCCESS || edges != count - 1)
        return count < 2;
    CUgraphNode *from = new_list(few_from, edges), *to = new_list(few_to, edges);
    bool done = from != NULL && to != NULL && REAL(cuGraphGetEdges)(graph, from, to, &edges) == CUDA_SUCCESS &&
                edges == count - 1 && (are_in_order(nodes, edges, from, to) || follow(nodes, count, from, to));
    free_list(from, count - 1);
    free_list(to, count - 1);
    return done;
}

/* False if it cannot all be read. */
static bool read_graph(struct reading *reading, CUgraph graph, enum what what, int depth) {
    CUgraphNode few[FEW];
    size_t count = 0, room;
    if (depth > DEPTH_MAX || REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS)
        return false;
    CUgraphNode *nodes = new_list(few, room = count);
    if (nodes == NULL || count == 0)
        return count == 0;
    bool read = REAL(cuGraphGetNodes)(graph, nodes, &count) == CUDA_SUCCESS;
    if (read && what == IN_ORDER && !put_in_order(graph, nodes, count))
        read = REAL(cuGraphGetNodes)(graph, nodes, &count) == CUDA_SUCCESS &&
               read_nodes(reading, nodes, count, ALLOCATIONS, depth) && read_nodes(reading, nodes, count, FREES, depth);
    else if (read)
        read = read_nodes(reading, nodes, count, what, depth);
    free_list(nodes, room);
    return read;
}

/* --- records of instances ----------------------------------------------------------------------------------------- */

/*
 * KIND_GRAPH_EXEC has, by the handle, the address of what an instance needs as `with`, which also identifies it: the
 * driver may reuse the handle before the record is removed. An instance has a reference while it lives, and one for each
 * call that uses it. cuGraphExecDestroy marks it, and the last call that uses it has the driver destroy it: so a handle
 * names the same instance until its launch has returned, and no lock is held meanwhile.
 */
#define ENDING (UINT64_C(1) << 63) /* in an instance's `with`: it is marked */

static struct instance *instance_of(uint64_t with) {
    return (struct instance *)(uintptr_t)(with & ~ENDING); /* NOLINT(performance-no-int-to-ptr) */
}

/* One that was freed is kept, since some programs make instances all the time. */
static struct instance *new_instance(struct process *process) {
    struct instance *instance = atomic_exchange(&process->graphs.spare, NULL);
    return instance != NULL ? instance : mapped_new(sizeof *instance);
}

static void free_instance(struct process *process, struct instance *instance) {
    if (instance == NULL)
        return;
    memset(instance, 0, sizeof *instance);
    mapped_free(atomic_exchange(&process->graphs.spare, instance), sizeof *instance);
}

/* The driver returned this handle for another instance: the former one has ended. One that is marked is freed by the call
 * that destroys it, one that is in use by a call is not. */
static void remove_former(struct process *process, CUgraphExec exec) {
    struct entry former;
    if (objects_remove(process, KIND_GRAPH_EXEC, (uintptr_t)exec, &former) && former.references == 1 &&
        (former.with & ENDING) == 0)
        free_instance(process, instance_of(former.with));
}

/* Reads what launches of a graph need. Most graphs allocate nothing: their order does not matter. */
static bool read_needs(struct instance *instance, CUgraph graph) {
    struct reading reading = {.instance = instance};
    bool read = read_graph(&reading, graph, ALLOCATIONS, 0);
    if (read && instance->devices != 0) {
        memset(instance, 0, sizeof *instance);
        memset(reading.allocated.entries, 0, reading.allocated.capacity * sizeof *reading.allocated.entries);
        reading.allocated.count = 0;
        read = read_graph(&reading, graph, IN_ORDER, 0);
    }
    mapped_free(reading.allocated.entries, reading.allocated.capacity * sizeof *reading.allocated.entries);
    return read;
}

/* Records an instance, even if it allocates nothing, so that all are known. False if its graph cannot be read. */
static bool record(struct process *process, CUgraphExec exec, CUgraph graph) {
    struct instance *instance = new_instance(process);
    struct entry entry = {.key = (uintptr_t)exec, .with = (uintptr_t)instance, .references = 1};
    if (instance != NULL && read_needs(instance, graph) && objects_put(process, KIND_GRAPH_EXEC, entry))
        return true;
    free_instance(process, instance);
    return false;
}

/* Adds a reference. CUDA_ERROR_INVALID_VALUE if the instance is destroyed already. `instance` is NULL if it is not known. */
static CUresult refer_to_known(struct process *process, CUgraphExec exec, struct instance **instance) {
    struct entry entry = {0};
    lock_take(&process->graphs.lock);
    bool known = objects_find(process, KIND_GRAPH_EXEC, (uintptr_t)exec, &entry);
    bool ending = known && (entry.with & ENDING) != 0;
    if (known && !ending)
        objects_refer(process, KIND_GRAPH_EXEC, (uintptr_t)exec, 1, &entry);
    lock_give(&process->graphs.lock);
    *instance = instance_of(entry.with);
    return ending ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/*
 * The same. A handle without a record may be that of an instance which another thread is making at this moment, or makes
 * before the driver gets the handle. So if `instance` is NULL, nothing is instantiated until stop_referring.
 */
static CUresult refer_to(struct process *process, CUgraphExec exec, struct instance **instance) {
    CUresult result = refer_to_known(process, exec, instance);
    if (result != CUDA_SUCCESS || *instance != NULL)
        return result;
    gate_close(&process->graphs.instantiating);
    result = refer_to_known(process, exec, instance);
    if (result != CUDA_SUCCESS || *instance != NULL)
        gate_open(&process->graphs.instantiating);
    return result;
}

/* Marks an instance, or removes the mark. False if it is not so any more. */
static bool mark(struct process *process, CUgraphExec exec, struct instance *instance, bool ending) {
    uint64_t plain = (uintptr_t)instance, marked = plain | ENDING;
    struct entry entry;
    lock_take(&process->graphs.lock);
    bool same = objects_find(process, KIND_GRAPH_EXEC, (uintptr_t)exec, &entry) &&
                entry.with == (ending ? plain : marked) &&
                objects_replace(process, KIND_GRAPH_EXEC, &entry, entry.charge, ending ? marked : plain);
    lock_give(&process->graphs.lock);
    return same;
}

/* The driver may reuse the handle at once: then another thread has replaced the record. */
static CUresult destroy(struct process *process, CUgraphExec exec, struct instance *instance) {
    CUresult result = REAL(cuGraphExecDestroy)(exec);
    if (result != CUDA_SUCCESS) {
        mark(process, exec, instance, false);
        return result;
    }
    objects_remove_with(process, KIND_GRAPH_EXEC, (uintptr_t)exec, (uintptr_t)instance | ENDING, NULL);
    free_instance(process, instance);
    return result;
}

/* Returns the driver's result if it destroys the instance. */
static CUresult stop_referring(struct process *process, CUgraphExec exec, struct instance *instance) {
    struct entry entry = {0};
    if (instance == NULL) {
        gate_open(&process->graphs.instantiating);
        return CUDA_SUCCESS;
    }
    lock_take(&process->graphs.lock);
    objects_refer(process, KIND_GRAPH_EXEC, (uintptr_t)exec, -1, &entry);
    lock_give(&process->graphs.lock);
    bool last = entry.references == 1 && entry.with == ((uintptr_t)instance | ENDING);
    return last ? destroy(process, exec, instance) : CUDA_SUCCESS;
}

/* --- launching ---------------------------------------------------------------------------------------------------- */

struct launching {
    struct process *process;
    struct instance *instance;
    bool runs; /* not only uploads */
    struct pool *pools[DEVICES_MAX];
};

static CUresult take_for(struct launching *launching, CUdevice device) {
    int gpu;
    CUresult result = gpus_find_claimed(launching->process, device, &gpu);
    if (result != CUDA_SUCCESS)
        return result;
    struct pool *pool = pools_graphs(launching->process, device, gpu);
    if (pool == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = pools_graphs_before(launching->process, pool, &launching->instance->needs[device], launching->runs);
    if (result == CUDA_SUCCESS)
        launching->pools[device] = pool;
    return result;
}

static void after(struct launching *launching, bool launched) {
    for (uint64_t left = launching->instance->devices; left != 0; left &= left - 1) {
        int device = __builtin_ctzll(left);
        if (launching->pools[device] != NULL)
            pools_graphs_after(launching->process, launching->pools[device], &launching->instance->needs[device],
                               launched);
    }
}

static CUresult before(struct launching *launching) {
    CUresult result = CUDA_SUCCESS;
    for (uint64_t left = launching->instance->devices; left != 0 && result == CUDA_SUCCESS; left &= left - 1)
        result = take_for(launching, __builtin_ctzll(left));
    if (result != CUDA_SUCCESS)
        after(launching, false);
    return result;
}

static bool takes_memory(const struct launching *launching) {
    return launching->instance != NULL && launching->instance->devices != 0;
}

static CUresult launch_begins(struct launching *launching, CUgraphExec exec, CUstream stream) {
    WORK_IN_STREAM(stream);
    CUresult result = refer_to(launching->process, exec, &launching->instance);
    if (result != CUDA_SUCCESS || !takes_memory(launching))
        return result;
    result = before(launching);
    if (result != CUDA_SUCCESS)
        stop_referring(launching->process, exec, launching->instance);
    return result;
}

/* Launches or uploads an instance by `real`; `named` is the stream, also if that is the calling thread's. Of an instance
 * that is known, no lock and no gate is held meanwhile: the launch may wait for earlier work, with functions of the
 * program in it. */
static CUresult launch(cuGraphLaunch_function real, bool runs, CUgraphExec exec, CUstream stream, CUstream named) {
    struct launching launching = {.process = process_if_open(), .runs = runs};
    if (launching.process == NULL)
        return real(exec, stream);
    CUresult result = launch_begins(&launching, exec, named);
    if (result != CUDA_SUCCESS)
        return result;
    result = real(exec, stream);
    if (takes_memory(&launching)) {
        after(&launching, runs && result == CUDA_SUCCESS);
        if (result == CUDA_SUCCESS) /* it frees its memory when the stream reaches it */
            streams_freed_in(launching.process, streams_context(named), named);
    }
    stop_referring(launching.process, exec, launching.instance);
    return result;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    GOVERNED_LAUNCH(stream);
    return launch(REAL(cuGraphLaunch), true, exec, stream, stream);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
    CUstream named = stream != NULL ? stream : CU_STREAM_PER_THREAD;
    GOVERNED_LAUNCH(named);
    return launch(REAL(cuGraphLaunch_ptsz), true, exec, stream, named);
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
    return launch(REAL(cuGraphUpload), false, exec, stream, stream);
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
    return launch(REAL(cuGraphUpload_ptsz), false, exec, stream, stream != NULL ? stream : CU_STREAM_PER_THREAD);
}

CUresult cuDeviceGraphMemTrim(CUdevice device) {
    CUresult result = REAL(cuDeviceGraphMemTrim)(device);
    pools_settle(process_if_open());
    return result;
}

/* --- instantiating ------------------------------------------------------------------------------------------------ */

/* A graph is read after the driver has instantiated it: then it has all of the nodes that the instance has, as nothing can
 * be removed from a graph that allocates. Meanwhile no graph is destroyed, whose handle another one could get, and no
 * nodes are put in order that were not. */
static CUresult instantiated(struct process *process, CUresult result, CUgraphExec *exec, CUgraph graph) {
    if (result != CUDA_SUCCESS)
        return result;
    remove_former(process, *exec);
    if (record(process, *exec, graph))
        return CUDA_SUCCESS;
    UNDO(REAL(cuGraphExecDestroy)(*exec)); /* its launches could not be charged */
    return CUDA_ERROR_OUT_OF_MEMORY;
}

#define INSTANTIATE(exec, graph, call)                                                                                 \
    do {                                                                                                               \
        struct process *process = process_if_open();                                                                   \
        if (process == NULL)                                                                                           \
            return call;                                                                                               \
        gate_close(&process->graphs.instantiating);                                                                    \
        CUresult result = instantiated(process, call, exec, graph);                                                    \
        gate_open(&process->graphs.instantiating);                                                                     \
        return result;                                                                                                 \
    } while (0)

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size) {
    INSTANTIATE(exec, graph, REAL(cuGraphInstantiate)(exec, graph, error, log, size));
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size) {
    INSTANTIATE(exec, graph, REAL(cuGraphInstantiate_v2)(exec, graph, error, log, size));
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    INSTANTIATE(exec, graph, REAL(cuGraphInstantiateWithFlags)(exec, graph, flags));
}

/* CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD: uploads the graph at once, which takes the memory of a launch. That is done by a
 * call of its own, when it is known how much. */
#define UPLOAD 2u

static CUresult instantiate_with(cuGraphInstantiateWithParams_function real, CUgraphExec *exec, CUgraph graph,
                                 CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    INSTANTIATE(exec, graph, real(exec, graph, parameters));
}

static CUresult instantiate_and_upload(cuGraphInstantiateWithParams_function real, cuGraphUpload_function upload,
                                       CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    if (process_if_open() == NULL || exec == NULL || parameters == NULL)
        return real(exec, graph, parameters);
    CUDA_GRAPH_INSTANTIATE_PARAMS without = *parameters;
    CUgraphExec made = NULL;
    without.flags &= ~(cuuint64_t)UPLOAD;
    CUresult result = instantiate_with(real, &made, graph, &without);
    if (result == CUDA_SUCCESS && parameters->flags & UPLOAD &&
        (result = upload(made, parameters->hUploadStream)) != CUDA_SUCCESS) {
        without.result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
        cuGraphExecDestroy(made);
    }
    parameters->hErrNode_out = without.hErrNode_out;
    parameters->result_out = without.result_out;
    if (result == CUDA_SUCCESS)
        *exec = made;
    return result;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    return instantiate_and_upload(REAL(cuGraphInstantiateWithParams), cuGraphUpload, exec, graph, parameters);
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    return instantiate_and_upload(REAL(cuGraphInstantiateWithParams_ptsz), cuGraphUpload_ptsz, exec, graph, parameters);
}

/* A call that changes a graph in a way that would not be seen when it is read after it was instantiated. */
#define CHANGE(call)                                                                                                   \
    do {                                                                                                               \
        struct process *process = process_if_open();                                                                   \
        if (process == NULL)                                                                                           \
            return call;                                                                                               \
        gate_enter(&process->graphs.instantiating);                                                                    \
        CUresult result = call;                                                                                        \
        gate_leave(&process->graphs.instantiating);                                                                    \
        return result;                                                                                                 \
    } while (0)

CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count) {
    CHANGE(REAL(cuGraphAddDependencies)(graph, from, to, count));
}

CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                   const CUgraphEdgeData *edges, size_t count) {
    CHANGE(REAL(cuGraphAddDependencies_v2)(graph, from, to, edges, count));
}

CUresult cuGraphDestroy(CUgraph graph) {
    CHANGE(REAL(cuGraphDestroy)(graph));
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
    struct process *process = process_if_open();
    struct instance *instance = NULL;
    if (process == NULL)
        return REAL(cuGraphExecDestroy)(exec);
    CUresult result = refer_to(process, exec, &instance);
    if (result != CUDA_SUCCESS)
        return result;
    if (instance == NULL)
        result = REAL(cuGraphExecDestroy)(exec);
    else if (!mark(process, exec, instance, true)) /* another thread was faster */
        result = CUDA_ERROR_INVALID_VALUE;
    CUresult destroyed = stop_referring(process, exec, instance);
    return result != CUDA_SUCCESS ? result : destroyed;
}
