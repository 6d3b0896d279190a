/* Prints every offset, size and constant of a region as `name value` lines, for the test that compares the Go package
 * with it. */
#include "../region/region.h"

#include <stdio.h>

#define FIELD(type, field)                                                                                             \
    printf(#type "." #field ".offset %zu\n" #type "." #field ".size %zu\n", offsetof(struct type, field),              \
           sizeof(((struct type *)0)->field))
#define NUMBER(name) printf(#name " %llu\n", (unsigned long long)(name))
#define TEXT(name) printf(#name " %s\n", name)

int main(void) {
    NUMBER(REGION_VERSION);
    TEXT(REGION_LIMIT_FILE);
    TEXT(REGION_USAGE_FILE);
    TEXT(REGION_LIMIT_MAGIC);
    TEXT(REGION_USAGE_MAGIC);
    NUMBER(REGION_CLAIM_ID_LENGTH);
    NUMBER(REGION_GPU_UUID_SIZE);
    NUMBER(REGION_PAGE_SHIFT);
    NUMBER(REGION_SLOT_COUNT);
    NUMBER(REGION_SLOT_SIZE);
    NUMBER(REGION_SLOTS_OFFSET);
    NUMBER(REGION_LIMIT_SIZE);
    NUMBER(REGION_USAGE_SIZE);
    NUMBER(REGION_SEQ_BITS);
    NUMBER(REGION_TOTAL_SLOT_BITS);
    NUMBER(REGION_TOTAL_PAGES_BITS);
    NUMBER(REGION_OP_DELTA_BITS);
    NUMBER(REGION_OP_MOVE_SLOT_BITS);
    NUMBER(REGION_OP_MOVE_PAGES_BITS);
    NUMBER(REGION_LIFE_KIND_BITS);
    NUMBER(REGION_LEDGER_COUNT);
    NUMBER(REGION_GPU);
    NUMBER(REGION_SPILL);
    NUMBER(REGION_KIND_NONE);
    NUMBER(REGION_KIND_PROCESS);
    NUMBER(REGION_KIND_SHARE);
    NUMBER(REGION_KIND_ENDED);
    NUMBER(REGION_KIND_NAME);
    NUMBER(REGION_COMMITTED_PAGES_BITS);

    printf("region_limit.size %zu\n", sizeof(struct region_limit));
    FIELD(region_limit, magic);
    FIELD(region_limit, version);
    FIELD(region_limit, size);
    FIELD(region_limit, claim_id);
    FIELD(region_limit, gpu_uuid);
    FIELD(region_limit, limit_bytes);
    FIELD(region_limit, context_bytes);
    FIELD(region_limit, compute_share_permille);
    FIELD(region_limit, flags);
    FIELD(region_limit, spill_bytes);
    FIELD(region_limit, uncounted_bytes);

    printf("region_usage.size %zu\n", sizeof(struct region_usage));
    FIELD(region_usage, magic);
    FIELD(region_usage, version);
    FIELD(region_usage, size);
    FIELD(region_usage, claim_id);
    FIELD(region_usage, slot_count);
    FIELD(region_usage, page_shift);
    FIELD(region_usage, sums);
    FIELD(region_usage, high_water);
    FIELD(region_usage, next_slot);
    FIELD(region_usage, slots);

    printf("region_sum.size %zu\n", sizeof(struct region_sum));
    FIELD(region_sum, total);
    FIELD(region_sum, refused);
    FIELD(region_sum, peak_pages);

    printf("region_held.size %zu\n", sizeof(struct region_held));
    FIELD(region_held, op);
    FIELD(region_held, committed);

    printf("region_slot.size %zu\n", sizeof(struct region_slot));
    FIELD(region_slot, held);
    FIELD(region_slot, pid);
    FIELD(region_slot, contexts);
    FIELD(region_slot, tag);
    FIELD(region_slot, target);
    FIELD(region_slot, life);
    return 0;
}
