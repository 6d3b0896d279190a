/* Finds the functions of the driver's library behind a shadow library. */
#ifndef TRANCHE_REAL_H
#define TRANCHE_REAL_H

/* The function `name` of the driver's library; NULL if it has none. `file` is the last part of the path by which the
 * shadow library depends on the driver's. */
void *real_lookup(const char *file, const char *name);

#endif
