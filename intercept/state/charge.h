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

/* Turns a charge into a share, which other processes find by the tag. False if the region has no room for one: then the
 * charge is unchanged. */
bool charge_share(struct process *process, struct charge *charge, const uint8_t tag[16]);

/* Gives a share of another process one more tag, until `name` is ended or this process is. False if the region has no
 * room for that, or if the share was not made for a file descriptor. */
bool charge_name(struct process *process, const struct charge *charge, const uint8_t tag[16], struct charge *name);

/* Takes hold of the share with a tag, in any claim of this process. If there is none, `charge` has no share. An error
 * if the regions could not be searched. */
CUresult charge_find(struct process *process, const uint8_t tag[16], struct charge *charge);

/* The same; true if a share was found. For a caller that pays in full itself if not. */
bool charge_join(struct process *process, const uint8_t tag[16], struct charge *charge);

/* Takes hold of a share once more, for a holder that is ended by itself. False if this process does not hold it. */
bool charge_hold(struct process *process, const struct charge *charge, struct charge *another);

/* The pages that the limit still allows in the claim where a charge lies. */
uint64_t charge_left(struct process *process, const struct charge *charge);

/* Whether a charge is a share of 0 pages. */
bool charge_is_empty(struct process *process, const struct charge *charge);

/* Ends a charge: gives its pages back, or lets go of its share. */
void charge_end(struct process *process, const struct charge *charge);

#endif
