/* What the files of MIG share. */
#ifndef SIMGPU_MIG_LOCAL_H
#define SIMGPU_MIG_LOCAL_H

#include "state_local.h"

struct state_mig *mig_state(int section);
const struct sim_mig_profile *mig_gi_profile(int section, unsigned seat);
uint64_t mig_reserved(int section, const struct sim_mig_profile *profile);

/* A number that no instance of this state has had, nor one of another state in this process. */
uint64_t mig_generation(struct state *st);

/* Around changes of instances. */
void mig_lock(void);
void mig_unlock(void);

/* Events, under the lock, while the instance is there. */
void mig_event_gi(enum sim_mig_what what, int section, unsigned seat, uint64_t peak_bytes);
void mig_event_ci(enum sim_mig_what what, int section, unsigned seat);
void mig_event_mode(enum sim_mig_what what, int section, bool on);

#endif
