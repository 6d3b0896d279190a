/* How to find the driver's own functions behind a shadow library. */
#ifndef TRANCHE_REAL_H
#define TRANCHE_REAL_H

/* The function `name` of the driver's library, or NULL. `soname` is the name of both that library and this one. */
void *real_lookup(const char *soname, const char *name);

#endif
