#ifndef TRANCHE_CONTEXTCOST_CONTEXT_H
#define TRANCHE_CONTEXTCOST_CONTEXT_H

#include <stddef.h>

/*
 * Loads the CUDA driver library at `path` and makes the primary context of the GPU with this UUID. Nothing is given
 * back: the calling process is expected to end soon. Returns 0, or -1 with a text in `error`.
 */
int tranche_make_context(const char *path, const unsigned char uuid[16], char *error, size_t error_size);

#endif
