/* One line on stderr, once per process and cause, for what a CUDA error code cannot say. */
#ifndef TRANCHE_EXPLAIN_H
#define TRANCHE_EXPLAIN_H

enum cause {
    CAUSE_REGION,        /* a region is missing or cannot be used */
    CAUSE_NO_CLAIM,      /* a GPU without a claim */
    CAUSE_CONTEXT_SIZE,  /* the limit is below what one context costs */
    CAUSE_REGION_BROKEN, /* a region was destroyed while in use */
    CAUSE_EXPORTS,       /* a pool that cannot be exported */
    CAUSE_DRIVER,        /* the driver's own library is missing or cannot be used */
};

__attribute__((format(printf, 2, 3))) void explain(enum cause cause, const char *format, ...);

#endif
