#include "memory/further.h"

static uint64_t key_of(uint64_t number, unsigned gpu) {
    return number * CLAIMS_MAX + gpu;
}

bool elsewhere_put(struct shard *shard, struct grant *grant, uint64_t number) {
    while (grant->elsewhere != NULL && grant->elsewhere->count > 0) {
        struct charge charge = grant->elsewhere->charges[grant->elsewhere->count - 1];
        if (table_put(&shard->elsewhere, (struct entry){.key = key_of(number, charge.gpu), .charge = charge}) == NULL) {
            elsewhere_end(grant->process, shard, number);
            return false;
        }
        grant->elsewhere->count--;
    }
    return true;
}

void elsewhere_end(struct process *process, struct shard *shard, uint64_t number) {
    for (unsigned gpu = 0; number != 0 && shard->elsewhere.count != 0 && gpu < process->claims.count; gpu++) {
        struct entry *known = table_find(&shard->elsewhere, key_of(number, gpu));
        if (known == NULL)
            continue;
        struct charge charge = known->charge;
        table_remove(&shard->elsewhere, known);
        charge_end(process, &charge);
    }
}
