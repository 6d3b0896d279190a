/* What the files of NVML's tests share. */
#ifndef SIMGPU_NVML_TEST_H
#define SIMGPU_NVML_TEST_H

#include <string.h>
#include <sys/types.h>

#include "../shared_objects.h"
#include "../sharing.h"
#include "nvml_sim.h"

#define MIB ((uint64_t)1 << 20)

/* Ends the test. */
_Noreturn void fail_at(const char *file, int line, const char *what, long long got, long long want);

#define CHECK_EQ(got, want)                                                                                            \
    do {                                                                                                               \
        long long got_ = (long long)(got), want_ = (long long)(want);                                                  \
        if (got_ != want_)                                                                                             \
            fail_at(__FILE__, __LINE__, #got, got_, want_);                                                            \
    } while (0)
#define CHECK(condition) CHECK_EQ(!!(condition), 1)
#define CHECK_STR(got, want) CHECK_EQ(strcmp(got, want), 0)
#define OK(call) CHECK_EQ(call, NVML_SUCCESS)

/* A path in the node's directory, good for the next three calls. */
const char *in_node(const char *name);
void write_file(const char *name, const char *content);

nvmlDevice_t gpu_handle(unsigned int index);

/* A process that holds memory of a GPU, or of a MIG device, which it is bound to. */
struct user {
    pid_t pid;
    int stop; /* closing it ends the process */
};
struct user start_user(int gpu, uint64_t bytes, uint64_t busy_ns);
void end_user(struct user user);
void kill_user(struct user user);

#define MIG_TESTS(X)                                                                                                   \
    X(mig_without)                                                                                                     \
    X(mig_mode_of_hopper)                                                                                              \
    X(mig_mode_of_ampere)                                                                                              \
    X(mig_mode_and_processes)                                                                                          \
    X(mig_privilege)                                                                                                   \
    X(mig_profiles)                                                                                                    \
    X(mig_profiles_without_mode)                                                                                       \
    X(mig_places_chosen)                                                                                               \
    X(mig_places_asked_for)                                                                                            \
    X(mig_capacity)                                                                                                    \
    X(mig_a_life)                                                                                                      \
    X(mig_uuids)                                                                                                       \
    X(mig_compute_instances)                                                                                           \
    X(mig_in_use)                                                                                                      \
    X(mig_processes)                                                                                                   \
    X(mig_two_makers)                                                                                                  \
    X(mig_reload)                                                                                                      \
    X(mig_faults)                                                                                                      \
    X(mig_seats_forget)                                                                                                \
    X(mig_threads)
#define DECLARE(name) void test_##name(void);
MIG_TESTS(DECLARE)
#undef DECLARE

#endif
