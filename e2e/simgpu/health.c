/* Health and telemetry that a test orders, and a GPU's and the driver's coming and going. */
#include "health.h"

#include <errno.h>
#include <string.h>

#include "mig/mig.h"
#include "state_local.h"

#define SETTING_UNSUPPORTED UINT64_MAX

static const struct {
    const char *name;
    uint64_t max;
} settings[SIM_SETTINGS] = {
#define SETTING(constant, name, max) [constant] = {name, max},
    SIM_SETTING_LIST(SETTING)
#undef SETTING
};

int sim_setting_find(const char *name) {
    for (int i = 0; i < SIM_SETTINGS; i++) {
        if (strcmp(settings[i].name, name) == 0)
            return i;
    }
    return -1;
}

const char *sim_setting_name(enum sim_setting setting) {
    return settings[setting].name;
}

uint64_t sim_setting_max(enum sim_setting setting) {
    return settings[setting].max;
}

/* The health of the board that a visible GPU is, or is a part of. */
static struct state_health_gpu *board(int gpu) {
    return &sim_local->state->gpu_health[section_of(gpu)];
}

static int put(int gpu, enum sim_setting setting, uint64_t word) {
    if (!in_range(gpu) || setting >= SIM_SETTINGS)
        return -EINVAL;
    atomic_store(&board(gpu)->settings[setting], word);
    return 0;
}

int sim_set(int gpu, enum sim_setting setting, uint64_t value) {
    return setting < SIM_SETTINGS && value > settings[setting].max ? -EINVAL : put(gpu, setting, value + 1);
}

int sim_set_unsupported(int gpu, enum sim_setting setting) {
    return put(gpu, setting, SETTING_UNSUPPORTED);
}

int sim_set_default(int gpu, enum sim_setting setting) {
    return put(gpu, setting, 0);
}

bool sim_setting(int gpu, enum sim_setting setting, uint64_t fallback, uint64_t *value) {
    uint64_t word = in_range(gpu) ? atomic_load(&board(gpu)->settings[setting]) : 0;

    *value = word == 0 ? fallback : word - 1;
    return word != SETTING_UNSUPPORTED;
}

int sim_ecc_occur(int gpu, enum sim_ecc_error error, enum sim_ecc_location location, uint64_t count) {
    if (!in_range(gpu) || error >= SIM_ECC_ERRORS || location >= SIM_ECC_LOCATIONS)
        return -EINVAL;
    for (int counter = 0; counter < SIM_ECC_COUNTERS; counter++)
        atomic_fetch_add(&board(gpu)->ecc[error][counter][location], count);
    return sim_event_post(gpu, error == SIM_ECC_CORRECTED ? SIM_EVENT_SINGLE_BIT_ECC : SIM_EVENT_DOUBLE_BIT_ECC,
                          (struct sim_event){.gi = SIM_NO_INSTANCE, .ci = SIM_NO_INSTANCE});
}

uint64_t sim_ecc_count(int gpu, enum sim_ecc_error error, enum sim_ecc_counter counter,
                       enum sim_ecc_location location) {
    return in_range(gpu) ? atomic_load(&board(gpu)->ecc[error][counter][location]) : 0;
}

static void reset_board(struct state_health_gpu *health) {
    static const enum sim_setting done[] = {SIM_ROWS_PENDING, SIM_PAGES_PENDING, SIM_RECOVERY_ACTION};

    for (int error = 0; error < SIM_ECC_ERRORS; error++) {
        for (int location = 0; location < SIM_ECC_LOCATIONS; location++)
            atomic_store(&health->ecc[error][SIM_ECC_VOLATILE][location], 0);
    }
    for (size_t i = 0; i < sizeof(done) / sizeof(done[0]); i++) {
        if (atomic_load(&health->settings[done[i]]) != SETTING_UNSUPPORTED)
            atomic_store(&health->settings[done[i]], 0);
    }
}

int sim_gpu_reset(int gpu) {
    if (!in_range(gpu))
        return -EINVAL;
    reset_board(board(gpu));
    return 0;
}

/* Who waits for an event has to see that something else happened: an event of no kind wakes it. */
static void wake_waiters(void) {
    sim_event_post(0, SIM_EVENT_NONE, (struct sim_event){.gi = SIM_NO_INSTANCE, .ci = SIM_NO_INSTANCE});
}

int sim_gpu_remove(int gpu, bool removed) {
    if (!in_range(gpu))
        return -EINVAL;
    atomic_store(&board(gpu)->removed, removed);
    wake_waiters();
    return 0;
}

bool sim_gpu_removed(int gpu) {
    return in_range(gpu) && atomic_load_explicit(&board(gpu)->removed, memory_order_relaxed) != 0;
}

void sim_driver_unload(void) {
    if (sim_local == NULL || sim_local->state == NULL)
        return;
    atomic_fetch_or(&sim_local->state->health.driver, 1);
    wake_waiters();
}

/* What is set for a time only, compute mode and persistence mode, is as it was at first. */
void sim_driver_load(void) {
    uint64_t driver;

    if (sim_local == NULL || sim_local->state == NULL)
        return;
    driver = atomic_load(&sim_local->state->health.driver);
    if (driver % 2 == 0)
        return;
    for (int i = 0; i < sim_local->topology.gpu_count; i++) {
        struct state_health_gpu *health = &sim_local->state->gpu_health[i];

        reset_board(health);
        atomic_store(&health->settings[SIM_COMPUTE_MODE], 0);
        atomic_store(&health->settings[SIM_PERSISTENCE_MODE], 0);
    }
    sim_mig_reload(true);
    atomic_compare_exchange_strong(&sim_local->state->health.driver, &driver, driver + 1);
}

uint64_t sim_driver_loads(void) {
    return sim_local != NULL && sim_local->state != NULL ? atomic_load(&sim_local->state->health.driver) : 0;
}

void sim_driver_mismatch(bool mismatch) {
    if (sim_local != NULL && sim_local->state != NULL)
        atomic_store(&sim_local->state->health.mismatch, mismatch);
}

bool sim_driver_mismatched(void) {
    return sim_local != NULL && sim_local->state != NULL && atomic_load(&sim_local->state->health.mismatch) != 0;
}

void health_clear(void) {
    struct state *st = sim_local->state;

    for (int i = 0; i < sim_local->topology.gpu_count; i++) {
        struct state_health_gpu *health = &st->gpu_health[i];

        for (int setting = 0; setting < SIM_SETTINGS; setting++) {
            /* A program has set this one, not a fault. */
            if (setting != SIM_COMPUTE_MODE)
                atomic_store(&health->settings[setting], 0);
        }
        memset((void *)health->ecc, 0, sizeof(health->ecc));
        atomic_store(&health->removed, 0);
    }
    atomic_store(&st->health.mismatch, 0);
    sim_driver_load();
    orders_clear();
}
