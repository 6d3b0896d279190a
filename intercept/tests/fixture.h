/* Regions for tests, in a directory that is removed at the end. */
#ifndef TRANCHE_TESTS_FIXTURE_H
#define TRANCHE_TESTS_FIXTURE_H

#include "../region/region.h"

#define FIXTURE_ID "0123abcd"
#define FIXTURE_UUID "GPU-00000000-0000-0000-0000-000000000001"

/* Creates an empty directory for claims and returns its path. The directory is removed when the calling process exits. */
const char *fixture_directory(void);

/* Writes a claim's region. An existing one is replaced by a new file. */
void fixture_claim(const char *directory, const char *id, const char *gpu_uuid, uint64_t limit_bytes,
                   uint64_t context_bytes);

/* Writes bytes into one of a claim's files. */
void fixture_write(const char *directory, const char *id, const char *file, long offset, const void *bytes,
                   unsigned long size);

/* The same for its limits. */
void fixture_limit(const char *directory, const char *id, uint64_t limit_bytes);
void fixture_uncounted(const char *directory, const char *id, uint64_t uncounted_bytes);

void fixture_spill(const char *directory, const char *id, uint64_t spill_bytes);

/* Sets the length of one of a claim's files. */
void fixture_truncate(const char *directory, const char *id, const char *file, long size);

#endif
