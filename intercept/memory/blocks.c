#include "memory/blocks.h"

#include "memory/further.h"
#include "system/mapped.h"

/* A block's `references`: the number of allocations in it, and in the higher bits the number of those that are being
 * freed. */
#define ONE_IN_IT UINT32_C(1)
#define ONE_LEAVING (UINT32_C(1) << 16)

/* The driver allocates in units of this size. */
#define UNIT_SHIFT 9
#define UNITS (1u << (BLOCK_SHIFT - UNIT_SHIFT))

/* Which units of a block are in use. All zero is a block of device memory without allocations. */
struct map {
    uint64_t used[UNITS / 64], last[UNITS / 64]; /* bits; the last unit of each allocation */
    uint32_t most; /* more than this was not free at once when it was last searched; 0: unknown */
    bool managed;
    bool blurred; /* what is used again overlaps what is being freed, whose end changes nothing then */
    bool unclean; /* was blurred: bits of nothing may be left */
    struct map *next_spare;
};

static struct map *map_of(const struct entry *block) {
    return (struct map *)(uintptr_t)block->with; /* NOLINT(performance-no-int-to-ptr) */
}

static struct map *map_new(struct shard *shard) {
    enum { AT_ONCE = 56 };
    struct map *map = shard->spare_maps;
    if (map == NULL && (map = mapped_new(AT_ONCE * sizeof *map)) != NULL)
        for (unsigned i = 0; i + 1 < AT_ONCE; i++)
            map[i].next_spare = &map[i + 1];
    if (map == NULL)
        return NULL;
    shard->spare_maps = map->next_spare;
    return map;
}

/* Without allocations, it has no bits. */
static void map_delete(struct shard *shard, struct map *map) {
    if (map->unclean)
        *map = (struct map){0};
    map->managed = false;
    map->next_spare = shard->spare_maps;
    shard->spare_maps = map;
}

/* The bits of word `word` for the units from `first` to `last`. */
static uint64_t mask_of(unsigned word, unsigned first, unsigned last) {
    uint64_t from = word == first / 64 ? UINT64_MAX << first % 64 : UINT64_MAX;
    return word == last / 64 ? from & (UINT64_MAX >> (63 - last % 64)) : from;
}

static unsigned unit_of(uint64_t address) {
    return (unsigned)((address & (BLOCK_BYTES - 1)) >> UNIT_SHIFT);
}

static void map_use(struct map *map, uint64_t address, uint64_t bytes) {
    unsigned first = unit_of(address), last = unit_of(address + bytes - 1);
    for (unsigned word = first / 64; word <= last / 64; word++) {
        uint64_t mask = mask_of(word, first, last);
        if ((map->used[word] & mask) != 0)
            map->blurred = map->unclean = true;
        map->used[word] |= mask;
        map->last[word] &= ~mask;
    }
    map->last[last / 64] |= UINT64_C(1) << last % 64;
}

static unsigned last_unit(const struct map *map, unsigned first) {
    unsigned word = first / 64;
    uint64_t bits = map->last[word] & UINT64_MAX << first % 64;
    while (bits == 0 && ++word < UNITS / 64)
        bits = map->last[word];
    return bits != 0 ? word * 64 + (unsigned)__builtin_ctzll(bits) : UNITS - 1;
}

static void map_free(struct map *map, uint64_t address) {
    unsigned first = unit_of(address), last = last_unit(map, first);
    for (unsigned word = first / 64; word <= last / 64 && !map->blurred; word++) {
        map->used[word] &= ~mask_of(word, first, last);
        map->last[word] &= ~mask_of(word, first, last);
    }
    map->most = 0;
}

static bool map_has_room(struct map *map, unsigned units) {
    unsigned run = 0, most = 0;
    if (map->managed || (map->most != 0 && map->most - 1 < units))
        return false;
    for (unsigned unit = 0; unit < UNITS && run < units; unit++) {
        bool full = unit % 64 == 0 && map->used[unit / 64] == UINT64_MAX;
        run = full || map->used[unit / 64] >> unit % 64 & 1 ? 0 : run + 1;
        most = run > most ? run : most;
        unit += full ? 63 : 0;
    }
    map->most = run < units ? most + 1 : 0;
    return run >= units;
}

static bool any_in_it(const struct entry *block) {
    return block->references % ONE_LEAVING != 0;
}

/* Moves a block, all of whose allocations are being freed, to the table of leaving blocks. */
static bool set_aside(struct shard *shard, struct entry *block) {
    struct entry aside = *block;
    aside.key = block->with;
    if (table_put(&shard->leaving, aside) == NULL)
        return false;
    table_remove(&shard->blocks, block);
    return true;
}

static bool make(struct shard *shard, struct grant *grant, struct entry *allocation, uint64_t bytes) {
    struct map *map = grant->charge.pages != 0 ? map_new(shard) : NULL;
    uint64_t number = (uintptr_t)map;
    if (map == NULL)
        return false;
    struct entry *block = table_put(&shard->blocks, (struct entry){.key = allocation->key >> BLOCK_SHIFT,
                                                                   .charge = grant->charge,
                                                                   .context = grant->context,
                                                                   .references = ONE_IN_IT,
                                                                   .with = number});
    map->managed = grant->further != NULL;
    if (block == NULL || !further_put(shard, grant, number)) {
        if (block != NULL)
            table_remove(&shard->blocks, block);
        map_delete(shard, map);
        return false;
    }
    grant->charge.pages = 0;
    allocation->with = number;
    map_use(map, allocation->key, bytes);
    return true;
}

bool blocks_join(struct shard *shard, struct grant *grant, struct entry *allocation, uint64_t bytes) {
    struct entry *block = table_find(&shard->blocks, allocation->key >> BLOCK_SHIFT);
    if (block != NULL && block->context == grant->context && any_in_it(block)) {
        block->references += ONE_IN_IT;
        allocation->with = block->with;
        map_use(map_of(block), allocation->key, bytes);
        return true;
    }
    return (block == NULL || set_aside(shard, block)) && make(shard, grant, allocation, bytes);
}

static bool may_take(const struct entry *block, uint32_t context) {
    return block->key != 0 && block->context == context && any_in_it(block);
}

static CUdeviceptr first_in(const struct entry *block) {
    const struct map *map = map_of(block);
    unsigned word = 0;
    while (map->used[word] == 0 && word < UNITS / 64 - 1)
        word++;
    unsigned unit = map->used[word] != 0 ? word * 64 + (unsigned)__builtin_ctzll(map->used[word]) : 0;
    return (block->key << BLOCK_SHIFT) + ((CUdeviceptr)unit << UNIT_SHIFT);
}

CUdeviceptr blocks_find_room(struct shard *shard, uint32_t context, uint64_t bytes) {
    unsigned units = (unsigned)((bytes + (1u << UNIT_SHIFT) - 1) >> UNIT_SHIFT);
    for (size_t i = 0; i < shard->blocks.capacity; i++) {
        const struct entry *block = &shard->blocks.entries[i];
        if (may_take(block, context) && block->charge.share == 0 && map_has_room(map_of(block), units))
            return first_in(block);
    }
    return 0;
}

void blocks_doubt(struct shard *shard, CUdeviceptr allocation) {
    const struct entry *block = table_find(&shard->blocks, allocation >> BLOCK_SHIFT);
    if (block != NULL)
        map_of(block)->most = 1;
}

void blocks_have_none(struct shard *shard, uint32_t context) {
    for (size_t i = 0; i < shard->blocks.capacity; i++)
        if (may_take(&shard->blocks.entries[i], context))
            map_of(&shard->blocks.entries[i])->most = 1;
}

static struct table *table_of(struct shard *shard, const struct entry *allocation, struct entry **block) {
    *block = table_find(&shard->blocks, allocation->key >> BLOCK_SHIFT);
    if (*block != NULL && (*block)->with == allocation->with)
        return &shard->blocks;
    *block = table_find(&shard->leaving, allocation->with);
    return &shard->leaving;
}

struct entry *blocks_of(struct shard *shard, const struct entry *allocation) {
    struct entry *block;
    table_of(shard, allocation, &block);
    return block;
}

bool blocks_set_aside(struct shard *shard, const struct entry *allocation) {
    struct entry *block;
    struct table *table = table_of(shard, allocation, &block);
    return table == &shard->leaving || set_aside(shard, block);
}

void blocks_leaving(struct shard *shard, const struct entry *allocation) {
    struct entry *block = blocks_of(shard, allocation);
    if (block == NULL)
        return;
    block->references += ONE_LEAVING - ONE_IN_IT;
    shard->freeing++;
}

void blocks_stayed(struct shard *shard, const struct entry *allocation) {
    struct entry *block = blocks_of(shard, allocation);
    if (block == NULL)
        return;
    block->references -= ONE_LEAVING - ONE_IN_IT;
    shard->freeing--;
}

struct charge blocks_left(struct process *process, struct shard *shard, const struct entry *allocation) {
    struct entry *block;
    struct table *table = table_of(shard, allocation, &block);
    if (block == NULL)
        return (struct charge){0};
    struct map *map = map_of(block);
    map_free(map, allocation->key);
    block->references -= ONE_LEAVING;
    shard->freeing--;
    map->blurred = map->blurred && block->references >= ONE_LEAVING;
    if (block->references != 0)
        return (struct charge){0};
    struct charge charge = block->charge;
    further_end(process, shard, block->with);
    table_remove(table, block);
    map_delete(shard, map);
    return charge;
}
