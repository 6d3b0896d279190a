/*
 * The region's protocol between threads, for the thread sanitizer: each thread has a mapping and a slot of its own, as if it
 * were a process. A thread "dies" by closing its mapping while it holds pages; the others reap them.
 */
#include "../region.h"
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
    char why[512];
    if (!region_open(region, directory, FIXTURE_ID, why, sizeof why) || !region_join(region, why, sizeof why)) {
        fprintf(stderr, "cannot open the region: %s\n", why);
        abort();
    }
}

static void *live_and_die(void *number) {
    unsigned random = seed + (unsigned)(size_t)number;
    for (int life = 0; life < 40; life++) {
        struct region region;
        uint64_t held = 0;
        open_or_die(&region);
        for (int i = 0; i < 200; i++) {
            uint64_t pages = 1 + (uint64_t)rand_r(&random) % 100;
            if (rand_r(&random) % 2 && held >= pages) {
                region_release(&region, REGION_GPU, pages);
                held -= pages;
            } else if (region_reserve(&region, REGION_GPU, pages) == REGION_OK) {
                held += pages;
            }
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
    open_or_die(&region);
    for (size_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, live_and_die, (void *)i); /* NOLINT(performance-no-int-to-ptr) */
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    region_reap(&region);
    CHECK(region_reserve(&region, REGION_GPU, LIMIT_PAGES) == REGION_OK, "all is free again");
    region_close(&region);
    return checks_report();
}
