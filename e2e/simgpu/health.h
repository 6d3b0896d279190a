/*
 * What a GPU's health and telemetry are, as a test orders them, for all processes through the state; and the orders by
 * which the driver itself fails: unloaded, stuck in a call, answering with an error.
 *
 * `gpu` is an index into the visible GPUs, as in state.h. A MIG instance has the settings of its GPU.
 */
#ifndef SIMGPU_HEALTH_H
#define SIMGPU_HEALTH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Whatever a GPU tells of itself that a test can set: X(constant, name, largest value). */
#define SIM_SETTING_LIST(X)                                                                                            \
    X(SIM_POWER_MW, "power_mw", 10000000)                                                                              \
    X(SIM_POWER_LIMIT_MW, "power_limit_mw", 10000000)                                                                  \
    X(SIM_TEMPERATURE, "temperature", 200)                                                                             \
    X(SIM_GRAPHICS_MHZ, "graphics_mhz", 100000)                                                                        \
    X(SIM_MEMORY_MHZ, "memory_mhz", 100000)                                                                            \
    X(SIM_GPU_UTILISATION, "gpu_utilisation", 100)                                                                     \
    X(SIM_MEMORY_UTILISATION, "memory_utilisation", 100)                                                               \
    X(SIM_ENCODER_UTILISATION, "encoder_utilisation", 100)                                                             \
    X(SIM_DECODER_UTILISATION, "decoder_utilisation", 100)                                                             \
    X(SIM_BAR1_MIB, "bar1_mib", 1 << 24)                                                                               \
    X(SIM_BAR1_USED_MIB, "bar1_used_mib", 1 << 24)                                                                     \
    X(SIM_PCIE_WIDTH, "pcie_width", 32)                                                                                \
    X(SIM_PCIE_GENERATION, "pcie_generation", 9)                                                                       \
    X(SIM_DISPLAY_MODE, "display_mode", 1)                                                                             \
    X(SIM_PERSISTENCE_MODE, "persistence_mode", 1)                                                                     \
    X(SIM_ECC_MODE, "ecc_mode", 1)                                                                                     \
    X(SIM_EVENT_TYPES, "event_types", 0xffff)                                                                          \
    X(SIM_ROWS_CORRECTABLE, "rows_correctable", 10000)                                                                 \
    X(SIM_ROWS_UNCORRECTABLE, "rows_uncorrectable", 10000)                                                             \
    X(SIM_ROWS_PENDING, "rows_pending", 1)                                                                             \
    X(SIM_ROWS_FAILED, "rows_failed", 1)                                                                               \
    X(SIM_BANKS_HIGH, "banks_high", 10000)                                                                             \
    X(SIM_BANKS_PARTIAL, "banks_partial", 10000)                                                                       \
    X(SIM_BANKS_LOW, "banks_low", 10000)                                                                               \
    X(SIM_BANKS_NONE, "banks_none", 10000)                                                                             \
    X(SIM_PAGES_CORRECTABLE, "pages_correctable", 1000)                                                                \
    X(SIM_PAGES_UNCORRECTABLE, "pages_uncorrectable", 1000)                                                            \
    X(SIM_PAGES_PENDING, "pages_pending", 1)                                                                           \
    X(SIM_RECOVERY_ACTION, "recovery_action", 7)                                                                       \
    X(SIM_COMPUTE_MODE, "compute_mode", 3)

enum sim_setting {
#define SIM_SETTING_CONSTANT(constant, name, max) constant,
    SIM_SETTING_LIST(SIM_SETTING_CONSTANT)
#undef SIM_SETTING_CONSTANT
        SIM_SETTINGS
};

/* The setting of this name, -1 for none; the name and the largest value of a setting. */
int sim_setting_find(const char *name);
const char *sim_setting_name(enum sim_setting setting);
uint64_t sim_setting_max(enum sim_setting setting);

/* Sets it, makes the GPU not support it, or gives it back to the simulator. 0 or -EINVAL. */
int sim_set(int gpu, enum sim_setting setting, uint64_t value);
int sim_set_unsupported(int gpu, enum sim_setting setting);
int sim_set_default(int gpu, enum sim_setting setting);

/* What is set, or `fallback`. Returns false if the GPU does not support it. */
bool sim_setting(int gpu, enum sim_setting setting, uint64_t fallback, uint64_t *value);

/* ---- ECC ---- */

enum sim_ecc_error { SIM_ECC_CORRECTED, SIM_ECC_UNCORRECTED, SIM_ECC_ERRORS };
enum sim_ecc_counter { SIM_ECC_VOLATILE, SIM_ECC_AGGREGATE, SIM_ECC_COUNTERS };
/* Level 1 and 2 caches and registers are static RAM; the last counts the static RAM elsewhere. */
enum sim_ecc_location { SIM_ECC_DRAM, SIM_ECC_L1, SIM_ECC_L2, SIM_ECC_REGISTERS, SIM_ECC_SRAM, SIM_ECC_LOCATIONS };

/* Errors come: both counters grow, and who waits for such events gets one. 0 or -EINVAL. */
int sim_ecc_occur(int gpu, enum sim_ecc_error error, enum sim_ecc_location location, uint64_t count);
uint64_t sim_ecc_count(int gpu, enum sim_ecc_error error, enum sim_ecc_counter counter, enum sim_ecc_location location);

/* ---- The GPU and its driver ---- */

/* A reset of the GPU: volatile counters begin anew, what waited for a reset is done, no action is called for. */
int sim_gpu_reset(int gpu);

/* The GPU leaves the bus, or comes to it. Sessions that have it find it lost; later ones do not find it at all. */
int sim_gpu_remove(int gpu, bool removed);
bool sim_gpu_removed(int gpu);

/*
 * The driver is unloaded, or loaded again, which resets every GPU. Even while it is loaded, odd while not, and another
 * number after each load: whoever began something under another number has to begin it anew.
 */
void sim_driver_unload(void);
void sim_driver_load(void);
uint64_t sim_driver_loads(void);

/* The driver is replaced by one of another version than the libraries that processes have loaded. */
void sim_driver_mismatch(bool mismatch);
bool sim_driver_mismatched(void);

/* ---- Orders for calls of NVML ---- */

/* Each is for a function of this name, or for "all". 0, -EINVAL, or -ENOSPC where there are too many. */
int sim_order_hang(const char *function, bool on);
/* Calls about a GPU (-1: any, and calls about none) fail with `result`; 0 calls it off. */
int sim_order_error(int gpu, const char *function, int result);

/* Whether there is any order: to be asked first, it costs nothing. */
bool sim_orders(void);
/* Returns when no order holds the function up. */
void sim_order_obey_hang(const char *function);
/* What a call about `gpu` (-1: about none) is to fail with, 0 for nothing. */
int sim_order_error_of(int gpu, const char *function);

/* ---- Layout, part of the state file ---- */

#define SIM_ORDERS 32

struct state_health_gpu {
    _Atomic uint64_t settings[SIM_SETTINGS]; /* 0: not set; else 1 + value, or SETTING_UNSUPPORTED */
    _Atomic uint64_t ecc[SIM_ECC_ERRORS][SIM_ECC_COUNTERS][SIM_ECC_LOCATIONS];
    _Atomic uint64_t removed;
};

struct state_order {
    _Atomic uint64_t what;     /* 0: none; else {1: hang or 2: error, gpu + 1:16, result:32} */
    _Atomic uint64_t function; /* hash of the name */
};

struct state_health {
    _Atomic uint64_t driver; /* sim_driver_loads */
    _Atomic uint64_t mismatch;
    _Atomic uint64_t order_count;
    _Atomic uint32_t order_futex; /* changes with every order */
    uint32_t pad;
    struct state_order orders[SIM_ORDERS];
};

#endif
