/*
 * Runs the region's protocol in threads, for the thread sanitizer: each thread has its own mapping and slot, like a
 * process. A thread "dies" by closing its mapping while it holds pages, which the others reap.
 */
#include "../region/region.h"
#include "check.h"
#include "fixture.h"

#include <pthread.h>
#include <stdlib.h>

#define THREADS 6
#define LIMIT_PAGES 500u

static const char *directory;
static unsigned seed;

void region_test_step(const char *step);
void region_test_step(const char *step) {
    (void)step;
}

static void open_or_die(struct region *region) {
    char why[REGION_WHY];
    if (!region_open(region, directory, FIXTURE_ID, why) || !region_join(region, why)) {
        fprintf(stderr, "cannot open the region: %s\n", why);
        abort();
    }
}

/* Makes a share for the others of what this one holds, and takes part in one of theirs. */
static int share(struct region *region, uint64_t own, uint64_t others, uint64_t *held) {
    int made = region_share_new(region, own);
    CHECK(made >= 0, "seed %u: no share", seed);
    CHECK(region_share_adopt(region, made, *held / 2) == REGION_OK, "seed %u: not adopted", seed);
    *held -= *held / 2;
    if (region_share_reserve(region, made, 3) == REGION_OK)
        region_share_release(region, made, 2);
    int attached = region_share_attach(region, others);
    CHECK(attached != made, "seed %u: took its own for another", seed);
    if (attached >= 0 && own % 2)
        region_share_detach(region, attached);
    return made;
}

static void *live_and_die(void *number) {
    unsigned random = seed + (unsigned)(size_t)number;
    for (int life = 0; life < 40; life++) {
        struct region region;
        uint64_t held = 0;
        int made = -1;
        open_or_die(&region);
        for (int i = 0; i < 200; i++) {
            uint64_t pages = 1 + (uint64_t)rand_r(&random) % 100;
            if (rand_r(&random) % 2 && held >= pages) {
                region_release(&region, REGION_GPU, pages);
                held -= pages;
            } else if (region_reserve(&region, REGION_GPU, pages) == REGION_OK) {
                held += pages;
            }
            if (i % 50 == 49) {
                uint64_t thread = (size_t)number, times = (uint64_t)life << 16 | (uint64_t)i << 8 | (unsigned)life % 2;
                uint64_t own = (thread + 1) << 32 | times;
                uint64_t others = ((thread + 1) % THREADS + 1) << 32 | times;
                region_share_detach(&region, made);
                made = share(&region, own, others, &held);
            }
            if (region_reserve(&region, REGION_SPILL, pages) == REGION_OK && i % 3)
                region_release(&region, REGION_SPILL, pages);
            uint64_t used = region_used_bytes(&region, REGION_GPU) >> REGION_PAGE_SHIFT;
            CHECK(used >= held && used <= LIMIT_PAGES, "seed %u: used %llu, held %llu", seed, (unsigned long long)used,
                  (unsigned long long)held);
        }
        region_close(&region);
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[THREADS];
    struct region region;
    seed = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 1;
    checks_start();
    directory = fixture_directory();
    fixture_claim(directory, FIXTURE_ID, FIXTURE_UUID, (uint64_t)LIMIT_PAGES << REGION_PAGE_SHIFT, 0);
    fixture_spill(directory, FIXTURE_ID, (uint64_t)LIMIT_PAGES << REGION_PAGE_SHIFT);
    open_or_die(&region);
    for (size_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, live_and_die, (void *)i); /* NOLINT(performance-no-int-to-ptr) */
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    region_reap(&region);
    CHECK(region_reserve(&region, REGION_GPU, LIMIT_PAGES) == REGION_OK, "all is free again");
    CHECK(region_reserve(&region, REGION_SPILL, LIMIT_PAGES) == REGION_OK, "all is free again");
    region_close(&region);
    return checks_report();
}
