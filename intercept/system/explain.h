/*
 * Error messages. A CUDA error code cannot name a cause, so explain() writes one line to stderr, at most once per
 * process and cause. errno is preserved.
 */
#ifndef TRANCHE_EXPLAIN_H
#define TRANCHE_EXPLAIN_H

enum cause {
    CAUSE_REGION,        /* a region is missing or not usable */
    CAUSE_NO_CLAIM,      /* a GPU without a claim */
    CAUSE_CONTEXT_SIZE,  /* the limit is below what one context costs */
    CAUSE_REGION_BROKEN, /* a region was damaged while in use */
    CAUSE_EXPORTS,       /* memory that cannot be exported */
    CAUSE_FUNCTION,      /* a function that is newer than the library */
    CAUSE_REFUSED,       /* a function of before CUDA 3.2 */
    CAUSE_PAGEABLE,      /* memory that CUDA did not allocate is to move to a GPU */
    CAUSE_CHECKPOINT,    /* a checkpoint or a restore that is not counted */
    CAUSE_GOVERNOR,      /* no thread for the governor */
    CAUSE_DRIVER,        /* the driver's library is missing or not usable */
    CAUSE_PTX,           /* PTX whose variables cannot be read */
};

__attribute__((format(printf, 2, 3))) void explain(enum cause cause, const char *format, ...);

#endif
