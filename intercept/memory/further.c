#include "memory/further.h"

static uint64_t key_of(uint64_t number, unsigned gpu) {
    return number * CLAIMS_MAX + gpu;
}

bool further_put(struct shard *shard, struct grant *grant, uint64_t number) {
    while (grant->further != NULL && grant->further->count > 0) {
        struct charge charge = grant->further->charges[grant->further->count - 1];
        if (table_put(&shard->further, (struct entry){.key = key_of(number, charge.gpu), .charge = charge}) == NULL) {
            further_end(grant->process, shard, number);
            return false;
        }
        grant->further->count--;
    }
    return true;
}

void further_end(struct process *process, struct shard *shard, uint64_t number) {
    for (unsigned gpu = 0; number != 0 && shard->further.count != 0 && gpu < process->claims.count; gpu++) {
        struct entry *known = table_find(&shard->further, key_of(number, gpu));
        if (known == NULL)
            continue;
        struct charge charge = known->charge;
        table_remove(&shard->further, known);
        charge_end(process, &charge);
    }
}
