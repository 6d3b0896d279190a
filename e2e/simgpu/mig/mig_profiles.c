/*
 * The profiles of the models that have MIG. Names, IDs, placements, memory and multiprocessors are those of the drivers'
 * own lists (nvidia-smi mig -lgip, -lgipp); where a list rounds, so do these. Engines are the documentation's.
 */
#include <string.h>

#include "mig.h"
#include "state_local.h"

/* NVML's numbers; its header is none of this library's. */
enum {
    SLICE_1 = 0,
    SLICE_2 = 1,
    SLICE_3 = 2,
    SLICE_4 = 3,
    SLICE_7 = 4,
    SLICE_1_MEDIA = 7,
    SLICE_2_MEDIA = 8,
    SLICE_1_DOUBLE = 9, /* twice the memory */
};

/* Slots at which instances of each size begin, on boards with eight of them. */
#define ANY_OF_7 0x7fu
#define EVEN_OF_8 0x55u
#define EVEN_OF_7 0x15u
#define HALVES 0x11u
#define FIRST 0x01u

/* {profile, id, name, slices, size, starts, max, MiB, SMs of the profile, SMs of the device, engines…} */
static const struct sim_mig_profile a30[] = {
    {SLICE_1, 14, "1g.6gb", 1, 1, 0xf, 4, 5952, 14, 14, 1, 0, 0, 0, 0},
    {SLICE_2, 5, "2g.12gb", 2, 2, 0x5, 2, 11968, 28, 28, 2, 2, 0, 0, 0},
    {SLICE_4, 0, "4g.24gb", 4, 4, FIRST, 1, 24000, 56, 56, 4, 4, 0, 1, 1},
    {SLICE_1_MEDIA, 21, "1g.6gb+me", 1, 1, 0xf, 1, 5952, 14, 14, 1, 1, 0, 1, 1},
    {SLICE_2_MEDIA, 6, "2g.12gb+me", 2, 2, 0x5, 1, 11968, 28, 28, 2, 2, 0, 1, 1},
};

/* Boards with seven slices differ in memory, multiprocessors and engines alone. */
#define SEVEN(g1, m1, d1, md, g2, g3, g4, g7, m3, m7, s1, sd, s2, s3, s4, s7, e1, e2, e3, e4, e7)                      \
    {                                                                                                                  \
        {SLICE_1, 19, "1g." g1, 1, 1, ANY_OF_7, 7, m1, s1, s1, 1, e1, 0, e1, 0},                                       \
            {SLICE_2, 14, "2g." g2, 2, 2, EVEN_OF_7, 3, md, s2, s2, 2, e2, 0, e1 * 2, 0},                              \
            {SLICE_3, 9, "3g." g3, 3, 4, HALVES, 2, m3, s3, s3, 3, e3, 0, e1 * 3, 0},                                  \
            {SLICE_4, 5, "4g." g4, 4, 4, FIRST, 1, m3, s4, s4, 4, e4, 0, e1 * 4, 0},                                   \
            {SLICE_7, 0, "7g." g7, 7, 8, FIRST, 1, m7, s7, s7, 7, e7, 0, e1 != 0 ? 7 : 1, 1},                          \
            {SLICE_1_MEDIA, 20, "1g." g1 "+me", 1, 1, ANY_OF_7, 1, m1, s1, s1, 1, 1, 0, 1, 1},                         \
            {SLICE_1_DOUBLE, 15, "1g." d1, 1, 2, EVEN_OF_8, 4, md, sd, s1, 1, 1, 0, e1, 0},                            \
    }

static const struct sim_mig_profile a100_40[] = SEVEN("5gb", 4864, "10gb", 9856, "10gb", "20gb", "20gb", "40gb", 19968,
                                                      40192, 14, 14, 28, 42, 56, 98, 0, 1, 2, 2, 5);
static const struct sim_mig_profile a100_80[] = SEVEN("10gb", 9856, "20gb", 19968, "20gb", "40gb", "40gb", "80gb",
                                                      40192, 80384, 14, 14, 28, 42, 56, 98, 0, 1, 2, 2, 5);
static const struct sim_mig_profile h100_80[] = SEVEN("10gb", 9984, "20gb", 20096, "20gb", "40gb", "40gb", "80gb",
                                                      40448, 81152, 16, 26, 32, 60, 64, 132, 1, 2, 3, 4, 7);
static const struct sim_mig_profile h200[] = SEVEN("18gb", 16384, "35gb", 33280, "35gb", "71gb", "71gb", "141gb", 71680,
                                                   143360, 16, 26, 32, 60, 64, 132, 1, 2, 3, 4, 7);
static const struct sim_mig_profile b200[] = SEVEN("23gb", 22528, "45gb", 45056, "45gb", "90gb", "90gb", "180gb", 90624,
                                                   182272, 18, 18, 36, 54, 72, 126, 1, 2, 3, 4, 7);

#define TABLE(profiles) profiles, sizeof(profiles) / sizeof((profiles)[0])

static const struct sim_mig_model models[] = {
    {" A30", NULL, 4, 14, TABLE(a30)},      {" A100", "80GB", 8, 14, TABLE(a100_80)},
    {" A100", NULL, 8, 14, TABLE(a100_40)}, {" H200", NULL, 8, 16, TABLE(h200)},
    {" H100", NULL, 8, 16, TABLE(h100_80)}, {" B200", NULL, 8, 18, TABLE(b200)},
};

const struct sim_mig_model *mig_model_of(const struct sim_gpu *whole) {
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        if (strstr(whole->name, models[i].part) != NULL &&
            (models[i].and_part == NULL || strstr(whole->name, models[i].and_part) != NULL))
            return &models[i];
    }
    return NULL;
}

const struct sim_mig_profile *mig_profile_by_id(const struct sim_mig_model *model, unsigned id) {
    for (unsigned i = 0; model != NULL && i < model->count; i++) {
        if (model->profiles[i].id == id)
            return &model->profiles[i];
    }
    return NULL;
}

/* The largest instance is as good as the whole GPU. */
uint64_t mig_memory_of(const struct sim_gpu *whole, const struct sim_mig_profile *profile) {
    const struct sim_mig_model *model = mig_model_of(whole);
    uint64_t mib = (whole->memory_bytes + whole->reserved_bytes) >> 20, largest = 0;

    for (unsigned i = 0; i < model->count; i++) {
        if (model->profiles[i].memory_mib > largest)
            largest = model->profiles[i].memory_mib;
    }
    mib = mib < largest ? profile->memory_mib * mib / largest : profile->memory_mib;
    return (mib & ~(uint64_t)1) << 20;
}

/*
 * Where instances of 1, 2, 3… slices begin in one of `of`: what is a power of two at its multiples, three at fours.
 */
unsigned sim_ci_starts(unsigned slices, unsigned of) {
    unsigned step = slices == 3 ? 4 : slices, starts = 0;

    if (slices == 0 || slices > of || (slices > 4 && slices != of))
        return 0;
    for (unsigned start = 0; start + slices <= of; start += step)
        starts |= 1u << start;
    return starts;
}
