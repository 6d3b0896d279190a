/*
 * Which of NVML's functions a thread is in, and what a test ordered for calls of it.
 *
 * The compiler puts a call of __cyg_profile_func_enter at the head of each of the library's functions
 * (-finstrument-functions), so that any of them, present or future, can be ordered to hang or to fail without a line
 * of its own for it.
 */
#include <dlfcn.h>
#include <stddef.h>

#include "../health.h"
#include "nvml_sim.h"

#define NOT_INSTRUMENTED __attribute__((no_instrument_function))

/* The outermost function of the library that this thread is in: the one that the program called. */
static _Thread_local void *current __attribute__((tls_model("initial-exec")));

NOT_INSTRUMENTED void __cyg_profile_func_enter(void *function, void *caller);
NOT_INSTRUMENTED void __cyg_profile_func_exit(void *function, void *caller);

/* The name under which the loader finds the function, "" for one that it does not. */
NOT_INSTRUMENTED static const char *name_of(void *function) {
    Dl_info info;

    return dladdr(function, &info) != 0 && info.dli_saddr == function && info.dli_sname != NULL ? info.dli_sname : "";
}

NOT_INSTRUMENTED static bool begins_a_session(void *function) {
    return function == (void *)nvmlInit || function == (void *)nvmlInit_v2 || function == (void *)nvmlInitWithFlags;
}

/* The state is held open while this thread waits in it, whoever else ends the session meanwhile. */
NOT_INSTRUMENTED static void obey_hang(void *function) {
    if (sim_topology() == NULL ? !begins_a_session(function) : !sim_orders())
        return;
    if (sim_open() != 0)
        return;
    if (sim_orders())
        sim_order_obey_hang(name_of(function));
    sim_close();
}

void __cyg_profile_func_enter(void *function, void *caller) {
    (void)caller;
    if (current != NULL)
        return;
    current = function;
    obey_hang(function);
}

void __cyg_profile_func_exit(void *function, void *caller) {
    (void)caller;
    if (current == function)
        current = NULL;
}

NOT_INSTRUMENTED nvmlReturn_t ordered_error(int gpu) {
    return sim_orders() ? (nvmlReturn_t)sim_order_error_of(gpu, name_of(current)) : NVML_SUCCESS;
}
