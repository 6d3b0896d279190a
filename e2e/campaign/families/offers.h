/*
 * What processes offer each other to import. Whoever has something to share publishes it at its seat; others take its descriptor
 * out of its process (pidfd_getfd) as if it had been sent.
 */
#ifndef CAMPAIGN_OFFERS_H
#define CAMPAIGN_OFFERS_H

#include "family.h"

enum { OFFER_HANDLE = 1, OFFER_LEGACY, OFFER_POOL };

/* What another process offers, or this one. */
struct taken {
    struct offered what;
    struct desk *desk;
    const struct offer *offer;
    uint32_t sequence;
    int process, descriptor; /* of the process, and a copy of what it offers; -1: none */
};

/* A place of this process's that no offer uses; OFFERS: there is none. It is the caller's until offer_withdraw. */
unsigned offer_slot(uint64_t *random);
void offer_publish(unsigned slot, struct offered what);
void offer_withdraw(unsigned slot);

/* A random offer of one of these kinds (by bit) on a GPU that this process sees, with a copy of its descriptor. False: there is
 * none. Ended by offer_done, which closes what the copy's owner has not set to -1. */
bool offer_take(struct call *call, unsigned kinds, struct taken *taken);
void offer_done(struct taken *taken);
/* Whether it is still the offer that was taken. */
bool offer_unchanged(const struct taken *taken);
/* Whether the process that made it has ended: what was imported is counted already unless its maker was dead by then, and then
 * whoever imports it pays once more. */
bool offer_orphaned(const struct taken *taken);

#endif
