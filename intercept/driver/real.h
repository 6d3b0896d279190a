/* How to find the driver's own functions behind a shadow library. */
#ifndef TRANCHE_REAL_H
#define TRANCHE_REAL_H

/* The function `name` of the driver's library, or NULL. `file` is what that library is called where it lies behind us. */
void *real_lookup(const char *file, const char *name);

#endif
