/*
 * Taking memory from a claim, and giving it back. Pages are taken before the driver is called to allocate, and given
 * back after it has freed; so a region never counts less than what is physically held.
 *
 * A charge (state/table.h) says how many pages were taken, in which region, and whether in this process's own slot or
 * in a share. A share outlives this process as long as another process of the claim holds it. Each function takes the
 * lock of the regions that it uses. memory/pools.h has pools_take, which makes room first.
 */
#ifndef TRANCHE_CHARGE_H
#define TRANCHE_CHARGE_H

#include "region/pages.h"
#include "state/process.h"

/* Takes pages of a GPU into this process's own slot, in the first claim of that GPU with room.
 * CUDA_ERROR_OUT_OF_MEMORY, and a charge of 0 pages, if no limit allows it. */
CUresult charge_try(struct process *process, int gpu, uint64_t pages, struct charge *charge);

/* What a call returns to the program: if that is CUDA_ERROR_OUT_OF_MEMORY, it is counted as a refusal of a claim. */
CUresult charge_refused(struct process *process, unsigned region, CUresult result);

/* The same in the region where another charge lies. */
CUresult charge_try_like(struct process *process, const struct charge *other, uint64_t pages, struct charge *charge);

/* Takes pages of host memory, for what lies beyond the limit, as far as the claim allows that. */
CUresult charge_spill(struct process *process, int gpu, uint64_t pages, struct charge *charge);

/* Takes more pages into a charge, in the region where that lies. */
CUresult charge_grow(struct process *process, struct charge *charge, uint64_t pages);

/* Moves pages from a charge in this process's own slot to another charge, which may be a share. An empty `to` that is
 * no share is put in the region of `from`. Between two regions nothing can be moved: then `to` grows in its own region,
 * if there is room, and `from` keeps its pages, for the caller to give back. */
void charge_move(struct process *process, struct charge *from, struct charge *to, uint64_t pages);

/* Gives all or some of a charge back. The region has less afterwards, or is broken. */
void charge_give(struct process *process, const struct charge *charge);
void charge_give_part(struct process *process, struct charge *charge, uint64_t pages);

/* Makes a charge a share, which other processes find by the tag. A share gets a further tag, until this process lets go
 * of it, or ends what this returns by charge_unname: 1 + the index of its slot; 0 if there is none. If the region has no
 * room for that, the charge is unchanged. */
uint16_t charge_share(struct process *process, struct charge *charge, uint64_t tag);
void charge_unname(struct process *process, unsigned region, uint16_t name);

/* Before memory is exported as a descriptor: makes its charge a share if it is none, and holds that once more, so that it
 * does not end before its descriptor is marked. False if the region has no room for one: then it must not be exported. */
bool charge_exporting(struct process *process, struct charge *charge, struct charge *held);

/* Writes a share's tag on a descriptor that keeps its memory: then it is counted until all copies of that are closed, even
 * if this process has ended. False if that fails: then the program must not get the descriptor. */
bool charge_export(struct process *process, const struct charge *held, int descriptor);

/* Takes hold of the share with a tag, in any claim of this process. If there is none, `charge` has no share. An error
 * if the regions could not be searched. */
CUresult charge_find(struct process *process, uint64_t tag, struct charge *charge);

/* The same by a descriptor of exported memory. */
CUresult charge_find_exported(struct process *process, int descriptor, struct charge *charge);

/* Takes hold of a share once more, for a holder that is ended by itself. False if this process does not hold it. */
bool charge_hold(struct process *process, const struct charge *charge, struct charge *another);

/* The pages that the limit still allows in the claim where a charge lies. */
uint64_t charge_left(struct process *process, const struct charge *charge);

/* Whether a charge is a share of 0 pages. */
bool charge_is_empty(struct process *process, const struct charge *charge);

/* Ends a charge: gives its pages back, or lets go of its share. */
void charge_end(struct process *process, const struct charge *charge);

#endif
