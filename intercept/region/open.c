/* The claims with their regions mapped, and the sums of these. */
#include "region/claims.h"
#include "system/explain.h"

static bool join(struct region *region, const char *directory, const char *id, char why[static REGION_WHY]) {
    return region_open(region, directory, id, why) && region_join(region, why);
}

static bool look(struct region *region, const char *directory, const char *id, char why[static REGION_WHY]) {
    return region_open(region, directory, id, why) && region_look(region, why);
}

bool claims_open(struct claims *claims, bool joins) {
    char why[REGION_WHY];
    if (claims_find(claims, joins ? join : look, why))
        return true;
    claims_close(claims);
    explain(CAUSE_REGION,
            "cannot read the GPU memory limit: %s; start the program in a container with GPU slices, or with "
            "`tranche run`",
            why);
    return false;
}

void claims_close(struct claims *claims) {
    for (unsigned i = 0; i < claims->count; i++)
        region_close(&claims->regions[i]);
    claims->count = 0;
}

uint64_t claims_limit_bytes(const struct claims *claims, int gpu) {
    uint64_t sum = 0;
    for (unsigned i = (unsigned)gpu; i < claims->count; i++)
        if (claims->gpu[i] == gpu)
            sum += region_limit_bytes(&claims->regions[i], REGION_GPU);
    return sum;
}

uint64_t claims_used_bytes(struct claims *claims, int gpu) {
    uint64_t sum = 0;
    for (unsigned i = (unsigned)gpu; i < claims->count; i++)
        if (claims->gpu[i] == gpu)
            sum += region_used_bytes(&claims->regions[i], REGION_GPU);
    return sum;
}
