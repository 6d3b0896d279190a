/* The contexts that were recorded since they are charged. */
#include "governor/contexts.h"

#include "governor/queues.h"

struct visiting {
    struct process *process;
    int gpu;
    void (*visit)(CUcontext, int);
};

struct gate *contexts_hold(struct process *process, CUcontext context, int gpu) {
    (void)gpu;
    return contexts_try_enter(process, context);
}

static void visit(uint32_t serial, int gpu, void *argument) {
    const struct visiting *visiting = argument;
    CUcontext context = contexts_handle(visiting->process, serial);
    if (context != NULL && queues_index(visiting->process, gpu) == visiting->gpu)
        visiting->visit(context, visiting->gpu);
}

void contexts_on(struct process *process, int gpu, void (*visit_one)(CUcontext, int)) {
    struct visiting visiting = {process, gpu, visit_one};
    contexts_each(process, visit, &visiting);
}
