/* Which GPUs a program of CUDA's enumerates, and what CUDA_VISIBLE_DEVICES leaves of them. */
#ifndef SIMGPU_VISIBLE_H
#define SIMGPU_VISIBLE_H

/* Whole GPUs that are not partitioned, and behind them all MIG devices, as indices of state.h. Returns how many. */
int visible_all(int *gpus);

/*
 * Keeps of `gpus` those that the list (NULL: no list) names by number or by the beginning of a UUID, in its order. It ends at
 * the first entry that names none; a GPU that is named twice spoils all of it. Returns how many are left.
 */
int visible_apply(const char *list, int *gpus, int count);

/* The GPU that one entry of such a list means: its place in `gpus`, or -1. */
int visible_find(const char *entry, int length, const int *gpus, int count);

#endif
