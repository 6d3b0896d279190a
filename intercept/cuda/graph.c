/*
 * Graphs that allocate. When a graph is launched, the driver takes memory from a pool of the device that all graphs
 * share, and keeps it until that is trimmed: see memory/pools.h. A launch takes at most the sum of the graph's
 * allocations, which is recorded when the graph is instantiated.
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

struct sizes {
    uint64_t bytes[DEVICES_MAX];
};

static bool add_graph(CUgraph graph, struct sizes *sizes, int depth);

static bool add_node(CUgraphNode node, struct sizes *sizes, int depth) {
    CUgraphNodeType type;
    CUDA_MEM_ALLOC_NODE_PARAMS allocation;
    CUgraph child;
    if (REAL(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS)
        return true;
    if (type == CU_GRAPH_NODE_TYPE_GRAPH && REAL(cuGraphChildGraphNodeGetGraph)(node, &child) == CUDA_SUCCESS)
        return add_graph(child, sizes, depth + 1);
    if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || REAL(cuGraphMemAllocNodeGetParams)(node, &allocation) != CUDA_SUCCESS ||
        allocation.poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return true;
    int device = allocation.poolProps.location.id;
    if (device < 0 || device >= DEVICES_MAX)
        return false;
    sizes->bytes[device] += (allocation.bytesize + POOLS_GROWTH_BYTES - 1) / POOLS_GROWTH_BYTES * POOLS_GROWTH_BYTES;
    return true;
}

/* Adds the allocations of a graph. False if they cannot all be read. */
static bool add_graph(CUgraph graph, struct sizes *sizes, int depth) {
    size_t count = 0;
    if (depth > DEPTH_MAX)
        return false;
    if (REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
        return true;
    size_t room = count * sizeof(CUgraphNode);
    CUgraphNode *nodes = mapped_new(room);
    if (nodes == NULL)
        return false;
    bool added = true;
    if (REAL(cuGraphGetNodes)(graph, nodes, &count) == CUDA_SUCCESS)
        for (size_t i = 0; i < count && added; i++)
            added = add_node(nodes[i], sizes, depth);
    mapped_free(nodes, room);
    return added;
}

/*
 * An instance is identified by a number, since the driver may reuse its handle before the record of the former instance
 * is removed. The number leads to an entry with a bit for each device, and to one entry for each device with the bytes.
 */
#define ALL_DEVICES (-1)

static uint64_t key_of(uint64_t number, int device) {
    return objects_key(number, (uint64_t)(device + 1));
}

static void remove_sizes(struct process *process, uint64_t number) {
    struct entry devices, of_device;
    if (number == 0 || !objects_remove(process, KIND_GRAPH_EXEC, key_of(number, ALL_DEVICES), &devices))
        return;
    for (int device = 0; device < DEVICES_MAX; device++)
        if (devices.with >> device & 1)
            objects_remove(process, KIND_GRAPH_EXEC, key_of(number, device), &of_device);
}

static void remove_record(struct process *process, CUgraphExec exec) {
    struct entry instance;
    if (objects_remove(process, KIND_GRAPH_EXEC, (uintptr_t)exec, &instance))
        remove_sizes(process, instance.with);
}

/* Records an instance, even if it allocates nothing, so that all instances are known. False if there is no memory for
 * that. */
static bool record(struct process *process, CUgraphExec exec, const struct sizes *sizes) {
    static _Atomic uint64_t last_number;
    uint64_t devices = 0, number = 1 + atomic_fetch_add(&last_number, 1);
    for (int device = 0; device < DEVICES_MAX; device++) {
        struct entry size = {.key = key_of(number, device), .with = sizes->bytes[device]};
        if (size.with != 0 && !objects_put(process, KIND_GRAPH_EXEC, size))
            return false;
        devices |= (uint64_t)(size.with != 0) << device;
    }
    struct entry all = {.key = key_of(number, ALL_DEVICES), .with = devices};
    struct entry instance = {.key = (uintptr_t)exec, .with = number, .references = 1};
    return (devices == 0 || objects_put(process, KIND_GRAPH_EXEC, all)) &&
           objects_put(process, KIND_GRAPH_EXEC, instance);
}

/* --- launching ---------------------------------------------------------------------------------------------------- */

struct launching {
    struct process *process;
    struct pool *pools[DEVICES_MAX];
    struct charge growth[DEVICES_MAX];
    uint64_t number; /* of the instance */
    bool takes;      /* any memory */
};

static CUresult take_for(struct launching *launching, CUdevice device, uint64_t bytes) {
    int gpu;
    CUresult result = gpus_find_claimed(launching->process, device, &gpu);
    if (result != CUDA_SUCCESS)
        return result;
    struct pool *pool = pools_graphs(launching->process, device, gpu);
    if (pool == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = pools_graphs_before(launching->process, pool, bytes, &launching->growth[device]);
    if (result != CUDA_SUCCESS)
        return result;
    launching->pools[device] = pool;
    launching->takes = true;
    return CUDA_SUCCESS;
}

static CUresult before(struct launching *launching, const struct sizes *sizes) {
    CUresult result = CUDA_SUCCESS;
    for (int device = 0; device < DEVICES_MAX && result == CUDA_SUCCESS; device++)
        if (sizes->bytes[device] != 0)
            result = take_for(launching, device, sizes->bytes[device]);
    for (int device = 0; device < DEVICES_MAX && result != CUDA_SUCCESS; device++)
        if (launching->pools[device] != NULL)
            charge_give(launching->process, &launching->growth[device]);
    return result;
}

static CUresult after(struct launching *launching, CUresult result) {
    for (int device = 0; device < DEVICES_MAX; device++)
        if (launching->pools[device] != NULL)
            pools_graphs_after(launching->process, launching->pools[device], &launching->growth[device]);
    return result;
}

/* What each device may have to take when an instance is launched. */
static void find_sizes(struct process *process, uint64_t number, struct sizes *sizes) {
    struct entry devices, entry;
    if (number == 0 || !objects_find(process, KIND_GRAPH_EXEC, key_of(number, ALL_DEVICES), &devices))
        return;
    for (int device = 0; device < DEVICES_MAX; device++)
        if (devices.with >> device & 1 && objects_find(process, KIND_GRAPH_EXEC, key_of(number, device), &entry))
            sizes->bytes[device] = entry.with;
}

/*
 * An instance has a reference while it lives, and one for each call that uses it. cuGraphExecDestroy marks it, and the last
 * call that uses it has the driver destroy it: so a handle names the same instance until its launch has returned, and no
 * lock is held meanwhile.
 */
#define ENDING (UINT64_C(1) << 63) /* in an instance's `with`: it is marked */

/* Adds a reference. CUDA_ERROR_INVALID_VALUE if the instance is destroyed already. `number` is 0 if it is not known. */
static CUresult refer_to_known(struct process *process, CUgraphExec exec, uint64_t *number) {
    struct entry instance = {0};
    lock_take(&process->graphs.lock);
    bool known = objects_find(process, KIND_GRAPH_EXEC, (uintptr_t)exec, &instance);
    bool ending = known && (instance.with & ENDING) != 0;
    if (known && !ending)
        objects_refer(process, KIND_GRAPH_EXEC, (uintptr_t)exec, 1, &instance);
    lock_give(&process->graphs.lock);
    *number = instance.with;
    return ending ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/*
 * The same. A handle without a record may be that of an instance which another thread is making at this moment, or makes
 * before the driver gets the handle. So if `number` is 0, nothing is instantiated until stop_referring.
 */
static CUresult refer_to(struct process *process, CUgraphExec exec, uint64_t *number) {
    CUresult result = refer_to_known(process, exec, number);
    if (result != CUDA_SUCCESS || *number != 0)
        return result;
    gate_close(&process->graphs.instantiations);
    result = refer_to_known(process, exec, number);
    if (result != CUDA_SUCCESS || *number != 0)
        gate_open(&process->graphs.instantiations);
    return result;
}

/* Replaces an instance's `with`. False if it is not this any more. */
static bool change(struct process *process, CUgraphExec exec, uint64_t from, uint64_t to) {
    struct entry instance;
    lock_take(&process->graphs.lock);
    bool same = objects_find(process, KIND_GRAPH_EXEC, (uintptr_t)exec, &instance) && instance.with == from &&
                objects_replace(process, KIND_GRAPH_EXEC, &instance, instance.charge, to);
    lock_give(&process->graphs.lock);
    return same;
}

/* The driver may reuse the handle at once: then another thread has replaced the record. */
static CUresult destroy(struct process *process, CUgraphExec exec, uint64_t number) {
    CUresult result = REAL(cuGraphExecDestroy)(exec);
    if (result != CUDA_SUCCESS) {
        change(process, exec, number | ENDING, number);
        return result;
    }
    objects_remove_with(process, KIND_GRAPH_EXEC, (uintptr_t)exec, number | ENDING);
    remove_sizes(process, number);
    return result;
}

/* Returns the driver's result if it destroys the instance. */
static CUresult stop_referring(struct process *process, CUgraphExec exec, uint64_t number) {
    struct entry instance = {0};
    if (number == 0) {
        gate_open(&process->graphs.instantiations);
        return CUDA_SUCCESS;
    }
    lock_take(&process->graphs.lock);
    objects_refer(process, KIND_GRAPH_EXEC, (uintptr_t)exec, -1, &instance);
    lock_give(&process->graphs.lock);
    bool last = instance.references == 1 && instance.with == (number | ENDING);
    return last ? destroy(process, exec, number) : CUDA_SUCCESS;
}

static CUresult launch_begins(struct launching *launching, CUgraphExec exec, CUstream stream) {
    struct sizes sizes = {0};
    WORK_IN_STREAM(stream);
    CUresult result = refer_to(launching->process, exec, &launching->number);
    if (result != CUDA_SUCCESS)
        return result;
    find_sizes(launching->process, launching->number, &sizes);
    result = before(launching, &sizes);
    if (result != CUDA_SUCCESS)
        stop_referring(launching->process, exec, launching->number);
    return result;
}

/* Launches or uploads an instance by `real`; `named` is the stream, also if that is the calling thread's. Of an instance
 * that is known, no lock and no gate is held meanwhile: the launch may wait for earlier work, with functions of the
 * program in it. */
static CUresult launch(cuGraphLaunch_function real, CUgraphExec exec, CUstream stream, CUstream named) {
    struct launching launching = {.process = process_if_open()};
    if (launching.process == NULL)
        return real(exec, stream);
    CUresult result = launch_begins(&launching, exec, named);
    if (result != CUDA_SUCCESS)
        return result;
    result = after(&launching, real(exec, stream));
    if (result == CUDA_SUCCESS && launching.takes) /* it frees its memory when the stream reaches it */
        streams_freed_in(launching.process, streams_context(named), named);
    stop_referring(launching.process, exec, launching.number);
    return result;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    GOVERNED_LAUNCH(stream);
    return launch(REAL(cuGraphLaunch), exec, stream, stream);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
    CUstream named = stream != NULL ? stream : CU_STREAM_PER_THREAD;
    GOVERNED_LAUNCH(named);
    return launch(REAL(cuGraphLaunch_ptsz), exec, stream, named);
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
    return launch(REAL(cuGraphUpload), exec, stream, stream);
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
    return launch(REAL(cuGraphUpload_ptsz), exec, stream, stream != NULL ? stream : CU_STREAM_PER_THREAD);
}

CUresult cuDeviceGraphMemTrim(CUdevice device) {
    CUresult result = REAL(cuDeviceGraphMemTrim)(device);
    pools_settle(process_if_open());
    return result;
}

/* --- instantiating ------------------------------------------------------------------------------------------------ */

static CUresult instantiated(struct process *process, CUresult result, CUgraphExec *exec, CUgraph graph) {
    struct sizes sizes = {0};
    if (result != CUDA_SUCCESS)
        return result;
    remove_record(process, *exec);
    if (add_graph(graph, &sizes, 0) && record(process, *exec, &sizes))
        return CUDA_SUCCESS;
    REAL(cuGraphExecDestroy)(*exec); /* its launches could not be charged */
    remove_record(process, *exec);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

#define INSTANTIATE(exec, graph, call)                                                                                 \
    do {                                                                                                               \
        struct process *process = process_if_open();                                                                   \
        if (process == NULL)                                                                                           \
            return call;                                                                                               \
        gate_enter(&process->graphs.instantiations);                                                                   \
        CUresult result = instantiated(process, call, exec, graph);                                                    \
        gate_leave(&process->graphs.instantiations);                                                                   \
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

/* CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD: uploads the graph at once, which takes the memory of a launch. */
#define UPLOAD 2u

static CUresult instantiate_with(cuGraphInstantiateWithParams_function real, CUgraphExec *exec, CUgraph graph,
                                 CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    struct launching launching = {.process = process_if_open()};
    if (launching.process == NULL || parameters == NULL || !(*(const cuuint64_t *)parameters & UPLOAD))
        INSTANTIATE(exec, graph, real(exec, graph, parameters));
    struct sizes sizes = {0};
    WORK_IN_CONTEXT;
    gate_enter(&launching.process->graphs.instantiations);
    CUresult result = add_graph(graph, &sizes, 0) ? before(&launching, &sizes) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS)
        result = instantiated(launching.process, after(&launching, real(exec, graph, parameters)), exec, graph);
    gate_leave(&launching.process->graphs.instantiations);
    return result;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    return instantiate_with(REAL(cuGraphInstantiateWithParams), exec, graph, parameters);
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    return instantiate_with(REAL(cuGraphInstantiateWithParams_ptsz), exec, graph, parameters);
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
    struct process *process = process_if_open();
    uint64_t number = 0;
    if (process == NULL)
        return REAL(cuGraphExecDestroy)(exec);
    CUresult result = refer_to(process, exec, &number);
    if (result != CUDA_SUCCESS)
        return result;
    if (number == 0)
        result = REAL(cuGraphExecDestroy)(exec);
    else if (!change(process, exec, number, number | ENDING)) /* another thread was faster */
        result = CUDA_ERROR_INVALID_VALUE;
    CUresult destroyed = stop_referring(process, exec, number);
    return result != CUDA_SUCCESS ? result : destroyed;
}
