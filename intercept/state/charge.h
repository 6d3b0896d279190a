/*
 * Taking from a claim, and giving back. Bytes are taken before the driver is asked for them and given back after it has taken
 * them back, so what a region says is never less than what is physically held.
 */
#ifndef TRANCHE_CHARGE_H
#define TRANCHE_CHARGE_H

#include "state/process.h"

#define BLOCK_SHIFT 21 /* the GPU maps memory in blocks of 2 MiB */
#define BLOCK_BYTES (UINT64_C(1) << BLOCK_SHIFT)
#define BLOCK_PAGES (BLOCK_BYTES >> REGION_PAGE_SHIFT)

/* The pages of as many whole blocks as it takes; at least one. Sizes that would wrap are more than any limit anyway. */
static inline uint64_t pages_of(uint64_t bytes) {
    uint64_t blocks = (bytes >> BLOCK_SHIFT) + ((bytes & (BLOCK_BYTES - 1)) != 0);
    return (blocks ? blocks : 1) * BLOCK_PAGES;
}

static inline uint64_t pages_to_bytes(uint64_t pages) {
    return pages << REGION_PAGE_SHIFT;
}

/* a * b, or as much as there is. */
static inline uint64_t product(uint64_t a, uint64_t b) {
    uint64_t result;
    return __builtin_mul_overflow(a, b, &result) ? UINT64_MAX : result;
}

/* Takes pages of a GPU into this process's own slot. If the limit allows no more, what the process's own memory pools hold
 * unused is given back first. What is refused is a charge of nothing. */
CUresult charge_take(struct process *process, int gpu, uint64_t pages, struct charge *charge);

/* The same without that. */
CUresult charge_try(struct process *process, int gpu, uint64_t pages, struct charge *charge);
CUresult charge_try_like(struct process *process, const struct charge *other, uint64_t pages, struct charge *charge);

/* Takes in the region where another charge lies. */
CUresult charge_take_like(struct process *process, const struct charge *other, uint64_t pages, struct charge *charge);

/* Moves pages from a charge in this process's own slot to another, which may be shared. An empty charge that is not shared goes
 * wherever the first lies. To one in another region nothing can be moved: there as much is taken anew, if it has that left, and
 * the first stays as it is, to be given back. */
void charge_move(struct process *process, struct charge *from, struct charge *to, uint64_t pages);

/* Takes pages beyond the limit, of the host's memory, as far as the claim allows that at all. */
CUresult charge_spill(struct process *process, int gpu, uint64_t pages, struct charge *charge);

/* Gives all or a part back. Whatever it says, the region has less then, or is broken. */
void charge_give(struct process *process, const struct charge *charge);
void charge_give_part(struct process *process, struct charge *charge, uint64_t pages);

/* Takes more into a charge, where that is: a charge lies in one region. */
CUresult charge_grow(struct process *process, struct charge *charge, uint64_t pages);

/* Makes the charge outlive this process, for as long as anybody in the claim holds what it is for, who will know it by the
 * tag. False if there is no room for that: then it stays as it is. */
bool charge_share(struct process *process, struct charge *charge, const uint8_t tag[16]);

/* Gives what another process has shared one more name, by which it is joined as by its first, until `name` is ended or this
 * process is. False if there is no room for that, or it was not shared as a descriptor. */
bool charge_name(struct process *process, const struct charge *charge, const uint8_t tag[16], struct charge *name);

/* Joins in a charge that another process of the claim has shared; none with this tag is a charge of nothing, without a share. An
 * error if it cannot be looked for. */
CUresult charge_find(struct process *process, const uint8_t tag[16], struct charge *charge);

/* The same: whether there is one that could be joined. For whoever pays in full by himself if not. */
bool charge_join(struct process *process, const uint8_t tag[16], struct charge *charge);

/* Takes hold once more of a share that we hold, for something that is ended by itself. False if we do not hold it. */
bool charge_hold(struct process *process, const struct charge *charge, struct charge *another);

/* The pages that are left of the GPU in the claim where a charge lies. */
uint64_t charge_left(struct process *process, const struct charge *charge);

/* Whether what is shared takes no memory. */
bool charge_is_empty(struct process *process, const struct charge *charge);

/* Ends our part in a charge, shared or not. */
void charge_end(struct process *process, const struct charge *charge);

#endif
