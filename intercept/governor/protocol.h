/*
 * The messages between the governed library and the governor (`tranche governor`). governor/protocol has the same in Go; a
 * test there compares the two.
 *
 * For each claim with a share of compute, the governor listens on a Unix socket of type SOCK_SEQPACKET in the claim's
 * directory. A message is one packet: this structure, in the host's byte order, which is little endian on all machines
 * that Tranche runs on. A HELLO is followed by the UUIDs of its GPUs. A packet of another size or version ends the
 * connection; an unknown kind is ignored.
 */
#ifndef TRANCHE_GOVERNOR_PROTOCOL_H
#define TRANCHE_GOVERNOR_PROTOCOL_H

#include <stdint.h>

#define GOVERNOR_SOCKET "governor"
#define GOVERNOR_VERSION 1
#define GOVERNOR_GPUS_MAX 16
#define GOVERNOR_UUID_SIZE 48 /* padded with zeroes, e.g. "GPU-…" */
#define GOVERNOR_ASKS 1

enum governor_kind {
    GOVERNOR_HELLO = 1, /* library → governor, the first: `gpu` is the number of GPUs, value[0] the process ID in the
                             process's own namespace */
    GOVERNOR_WELCOME = 2, /* governor → library, with the page's descriptor (SCM_RIGHTS): value[0] is the period of its
                             heartbeat in ns; bit i of `flags`: GPU i is governed */
    GOVERNOR_WANT = 3,    /* library → governor: a thread waits at the closed gate of `gpu` */
    GOVERNOR_GRANT = 4,   /* governor → library: `turn` of `gpu` has begun, as the page says already */
    GOVERNOR_REVOKE = 5,  /* governor → library: `turn` of `gpu` ends, as the page says already. With GOVERNOR_ASKS in
                             `flags` it is answered by ENDING or DRAINED, so that the governor knows that the process runs */
    GOVERNOR_ENDING = 6, /* library → governor: what is outstanding will end within value[0] ns, 0 if that is unknown;
                             again if sooner; value[1]: 1 if it only waits for memory and takes no time of the GPU */
    GOVERNOR_DRAINED = 7, /* library → governor: nothing of `turn` is outstanding, as seen at value[0] (CLOCK_MONOTONIC,
                             ns); value[1]: for how many ns of the turn nothing was, estimated; value[2]: when the first
                             thread that had waited for the turn went on (CLOCK_MONOTONIC, ns), 0 if none had */
    GOVERNOR_IDLE =
        8, /* library → governor: in `turn`, nothing is outstanding and nothing was submitted for value[0] ns */
    GOVERNOR_BYE = 9,     /* library → governor: the process ends */
    GOVERNOR_REFUSED = 10 /* governor → library: the version or the process is not accepted; the connection ends */
};

/* `gpu` is an index into the UUIDs of HELLO, and of the page's array. */
struct governor_message {
    uint16_t version, kind;
    uint32_t gpu;
    uint64_t turn;
    uint64_t flags;
    uint64_t value[5];
};

struct governor_hello {
    struct governor_message message;
    char uuid[GOVERNOR_GPUS_MAX][GOVERNOR_UUID_SIZE]; /* the packet ends after the last that is used */
};

_Static_assert(sizeof(struct governor_message) == 64, "the size is part of the protocol");

#endif
