/*
 * A program whose region is damaged gets a fitting CUDA error and one line on stderr with the cause. It never gets
 * memory beyond the limit, and it is not killed. The shadow runs in front of the simulated GPU, whose record has the
 * memory in use.
 *
 *   life_broken     with SIMGPU_* and LD_LIBRARY_PATH in the environment
 */
#include "../driver/cuda_api.h"
#include "check.h"
#include "fixture.h"
#include "life.h"
#include "state.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LIMIT (256 * MIB)
#define CONTEXT (64 * MIB)
#define GPU "GPU-7e570000-0000-4000-8000-000000000000"

static const char *regions; /* the directory of the case's claims */

static void path_of(char *path, size_t size, const char *file) {
    snprintf(path, size, "%s/" FIXTURE_ID "/%s", regions, file);
}

/* --- how to break one: ARGUMENT is the file, NUMBER what the case says --- */

static void remove_file(const char *file, long unused) {
    char path[256];
    (void)unused;
    path_of(path, sizeof path, file);
    CHECK(unlink(path) == 0, "%s", path);
}

static void remove_all(const char *unused, long also_unused) {
    char path[256];
    (void)unused;
    (void)also_unused;
    remove_file(REGION_LIMIT_FILE, 0);
    remove_file(REGION_USAGE_FILE, 0);
    path_of(path, sizeof path, "");
    CHECK(rmdir(path) == 0, "%s", path);
}

static void truncate_file(const char *file, long size) {
    fixture_truncate(regions, FIXTURE_ID, file, size);
}

static void hide_file(const char *file, long mode) {
    char path[256];
    path_of(path, sizeof path, file);
    CHECK(chmod(path, (mode_t)mode) == 0, "%s", path);
}

static void directory_instead(const char *file, long unused) {
    char path[256];
    remove_file(file, unused);
    path_of(path, sizeof path, file);
    CHECK(mkdir(path, 0755) == 0, "%s", path);
}

static void pipe_instead(const char *file, long unused) {
    char path[256];
    remove_file(file, unused);
    path_of(path, sizeof path, file);
    CHECK(mkfifo(path, 0666) == 0, "%s", path);
}

static void link_to_itself(const char *file, long unused) {
    char path[256];
    remove_file(file, unused);
    path_of(path, sizeof path, file);
    CHECK(symlink(file, path) == 0, "%s", path);
}

static size_t size_of(const char *file) {
    return strcmp(file, REGION_LIMIT_FILE) == 0 ? REGION_LIMIT_SIZE : REGION_USAGE_SIZE;
}

static void fill_from(const char *file, size_t from, long seed) {
    static unsigned char noise[REGION_USAGE_SIZE];
    unsigned state = (unsigned)seed;
    size_t size = size_of(file) - from;
    for (size_t i = 0; i < size; i++)
        noise[i] = seed == 0 ? 0 : (unsigned char)(rand_r(&state) >> 5);
    fixture_write(regions, FIXTURE_ID, file, (long)from, noise, size);
}

static void fill(const char *file, long seed) { /* 0: with zeros */
    fill_from(file, 0, seed);
}

/* Everything behind what says that it is a region of this claim: magic, version, size, identity. */
static void fill_behind_header(const char *file, long seed) {
    fill_from(file, 64, seed);
}

static void set_version(const char *file, long difference) {
    uint32_t version = (uint32_t)(REGION_VERSION + difference);
    fixture_write(regions, FIXTURE_ID, file, offsetof(struct region_limit, version), &version, sizeof version);
}

static void set_magic(const char *file, long unused) {
    (void)unused;
    fixture_write(regions, FIXTURE_ID, file, 0, "NOTOURS", 8);
}

static void set_claim(const char *file, long offset) {
    fixture_write(regions, FIXTURE_ID, file, offset, "ffffffff", REGION_CLAIM_ID_LENGTH);
}

static void set_uuid(const char *file, long unused) {
    char uuid[REGION_GPU_UUID_SIZE];
    (void)unused;
    memset(uuid, 'G', sizeof uuid); /* with no end */
    fixture_write(regions, FIXTURE_ID, file, offsetof(struct region_limit, gpu_uuid), uuid, sizeof uuid);
}

/* --- the program --- */

struct said {
    int result;      /* the first that is no success, or 0 */
    uint64_t ns;     /* the longest that a call took */
    int calls_after; /* that were made after the region was broken */
};

struct broken {
    const char *name;
    void (*make)(const char *file, long number);
    const char *file;
    long number;
    const char *line; /* what the line on stderr has to speak of; while it runs, of the file will do. NULL: there need
                       * be no line. */
};

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void note(struct said *said, uint64_t began, CUresult result) {
    uint64_t took = now_ns() - began;
    said->ns = took > said->ns ? took : said->ns;
    if (said->result == CUDA_SUCCESS)
        said->result = (int)result;
}

#define NOTE(call)                                                                                                     \
    do {                                                                                                               \
        uint64_t began = now_ns();                                                                                     \
        CUresult result = (call);                                                                                      \
        note(said, began, result);                                                                                     \
    } while (0)

/* Calls what there is, breaking the region in between if `while_running`, and goes on whatever it gets. */
static void program(const struct broken *broken, bool while_running, struct said *said) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL)
        _exit(3);
    CUresult (*init)(unsigned) = (CUresult(*)(unsigned))dlsym(library, "cuInit");
    CUresult (*create)(CUcontext *, unsigned, CUdevice) =
        (CUresult(*)(CUcontext *, unsigned, CUdevice))dlsym(library, "cuCtxCreate_v2");
    CUresult (*alloc)(CUdeviceptr *, size_t) = (CUresult(*)(CUdeviceptr *, size_t))dlsym(library, "cuMemAlloc_v2");
    CUresult (*release)(CUdeviceptr) = (CUresult(*)(CUdeviceptr))dlsym(library, "cuMemFree_v2");
    CUresult (*info)(size_t *, size_t *) = (CUresult(*)(size_t *, size_t *))dlsym(library, "cuMemGetInfo_v2");
    CUdeviceptr held = 0, address;
    CUcontext context;
    size_t size;
    NOTE(init(0));
    NOTE(create(&context, 0, 0));
    NOTE(alloc(&held, 20 * MIB));
    if (while_running) {
        if (said->result != CUDA_SUCCESS)
            _exit(4);
        broken->make(broken->file, broken->number);
    }
    /* More than the limit; each is held. */
    for (int i = 0; i < 20; i++) {
        NOTE(alloc(&address, 20 * MIB));
        NOTE(info(&size, &size));
        said->calls_after++;
    }
    release(held);
    _exit(0);
}

/* --- the judge --- */

static int count_lines(int file, char *line, size_t size) {
    ssize_t length = pread(file, line, size - 1, 0);
    int lines = 0;
    line[length > 0 ? length : 0] = '\0';
    for (const char *at = line; (at = strchr(at, '\n')) != NULL; at++)
        lines++;
    return lines;
}

static uint64_t peak;

static int add_peak(const struct sim_group_info *group, void *unused) {
    (void)unused;
    peak += group->gpus[0].peak_bytes;
    return 0;
}

static void fresh_claim(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s/%s'", regions, FIXTURE_ID);
    if (system(command) != 0)
        abort();
    fixture_claim(regions, FIXTURE_ID, GPU, LIMIT, CONTEXT);
}

static void check_case(const struct broken *broken, bool while_running) {
    const char *when = while_running ? "while it runs" : "beforehand";
    static struct said *said;
    char lines[4096];
    int status = -1, stderr_file = memfd_create("stderr", MFD_CLOEXEC);
    if (said == NULL)
        said = mmap(NULL, sizeof *said, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    *said = (struct said){0};
    fresh_claim();
    sim_reset_peaks();
    if (!while_running)
        broken->make(broken->file, broken->number);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        dup2(stderr_file, STDERR_FILENO);
        if (broken->make == hide_file && !while_running && setresuid(65534, 65534, 65534) != 0)
            _exit(5); /* nothing is unreadable for root */
        program(broken, while_running, said);
    }
    waitpid(pid, &status, 0);
    int count = count_lines(stderr_file, lines, sizeof lines);
    close(stderr_file);
    peak = 0;
    sim_reap();
    sim_each_group(add_peak, NULL);

    CHECK(status == 0, "%s, %s: ended with status %#x", broken->name, when, (unsigned)status);
    CHECK(peak <= LIMIT, "%s, %s: %zu MiB were taken", broken->name, when, (size_t)peak / MIB);
    CHECK(said->result != CUDA_SUCCESS, "%s, %s: no error at all", broken->name, when);
    CHECK(said->ns < 1000000000, "%s, %s: a call took %d ms", broken->name, when, (int)(said->ns / 1000000));
    if (broken->line == NULL) {
        CHECK(count <= 1, "%s, %s: said\n%s", broken->name, when, lines);
        return;
    }
    CHECK(said->result == CUDA_ERROR_SYSTEM_NOT_READY, "%s, %s: result %d", broken->name, when, said->result);
    const char *subject = while_running ? broken->file : broken->line;
    CHECK(count == 1 && strncmp(lines, "tranche: ", 9) == 0 && strstr(lines, subject) != NULL,
          "%s, %s: said, and not one line that speaks of \"%s\":\n%s", broken->name, when, subject, lines);
    if (!while_running)
        CHECK(peak == 0, "%s: %zu MiB were taken", broken->name, (size_t)peak / MIB);
}

#define LIMIT_FILE REGION_LIMIT_FILE
#define USAGE_FILE REGION_USAGE_FILE

static const struct broken beforehand[] = {
    {"no claim", remove_all, NULL, 0, "holds no claim"},
    {"no limit", remove_file, LIMIT_FILE, 0, "/limit"},
    {"no usage", remove_file, USAGE_FILE, 0, "/usage"},
    {"a directory for a limit", directory_instead, LIMIT_FILE, 0, "/limit"},
    {"a directory for a usage", directory_instead, USAGE_FILE, 0, "/usage"},
    {"a pipe for a limit", pipe_instead, LIMIT_FILE, 0, "/limit"},
    {"a pipe for a usage", pipe_instead, USAGE_FILE, 0, "/usage"},
    {"a limit that is a link to itself", link_to_itself, LIMIT_FILE, 0, "/limit"},
    {"an unreadable limit", hide_file, LIMIT_FILE, 0, "/limit"},
    {"an unreadable usage", hide_file, USAGE_FILE, 0, "/usage"},
    {"a usage that cannot be written", hide_file, USAGE_FILE, 0444, "/usage"},
    {"another claim's limit", set_claim, LIMIT_FILE, offsetof(struct region_limit, claim_id), "/limit"},
    {"another claim's usage", set_claim, USAGE_FILE, offsetof(struct region_usage, claim_id), "/usage"},
    {"a UUID without end", set_uuid, LIMIT_FILE, 0, "/limit"},
};

static const struct broken at_any_time[] = {
    {"a limit of zeros", fill, LIMIT_FILE, 0, "/limit"},
    {"a usage of zeros", fill, USAGE_FILE, 0, "/usage"},
    {"a limit of noise", fill, LIMIT_FILE, 1, "/limit"},
    {"a usage of noise", fill, USAGE_FILE, 2, "/usage"},
    {"a limit of other noise", fill, LIMIT_FILE, 3, "/limit"},
    {"a usage of other noise", fill, USAGE_FILE, 4, "/usage"},
    {"an older limit", set_version, LIMIT_FILE, -1, "version"},
    {"an older usage", set_version, USAGE_FILE, -1, "version"},
    {"a newer limit", set_version, LIMIT_FILE, 1, "version"},
    {"a newer usage", set_version, USAGE_FILE, 1, "version"},
    {"no limit, by its beginning", set_magic, LIMIT_FILE, 0, "/limit"},
    {"no usage, by its beginning", set_magic, USAGE_FILE, 0, "/usage"},
};

/* Of files that are cut off while they are mapped, the kernel tells by a signal. */
static const struct broken cut_off_beforehand[] = {
    {"an empty limit", truncate_file, LIMIT_FILE, 0, "/limit"},
    {"an empty usage", truncate_file, USAGE_FILE, 0, "/usage"},
    {"a limit that is cut off", truncate_file, LIMIT_FILE, 100, "/limit"},
    {"a usage that is cut off", truncate_file, USAGE_FILE, 4096, "/usage"},
    {"a usage that is too long", truncate_file, USAGE_FILE, REGION_USAGE_SIZE + 4096, "/usage"},
};

/* What says that it is a region and is none, or is only partly there: whatever a call gets, it gets it at once. */
static const struct broken in_disorder[] = {
    {"disorder", fill_behind_header, USAGE_FILE, 1, NULL}, {"disorder", fill_behind_header, USAGE_FILE, 2, NULL},
    {"disorder", fill_behind_header, USAGE_FILE, 3, NULL}, {"disorder", fill_behind_header, USAGE_FILE, 4, NULL},
    {"disorder", fill_behind_header, USAGE_FILE, 5, NULL}, {"disorder", fill_behind_header, USAGE_FILE, 6, NULL},
};

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

int main(void) {
    checks_start();
    regions = fixture_directory();
    setenv("TRANCHE_REGIONS", regions, 1);
    if (chmod(regions, 0755) != 0 || sim_open_all() != 0) {
        fprintf(stderr, "life_broken: %s\n", sim_error());
        return 2;
    }
    for (size_t i = 0; i < COUNT(beforehand); i++)
        check_case(&beforehand[i], false);
    for (size_t i = 0; i < COUNT(cut_off_beforehand); i++)
        check_case(&cut_off_beforehand[i], false);
    for (size_t i = 0; i < COUNT(at_any_time); i++) {
        check_case(&at_any_time[i], false);
        check_case(&at_any_time[i], true);
    }
    for (size_t i = 0; i < COUNT(in_disorder); i++)
        check_case(&in_disorder[i], true);

    setenv("TRANCHE_REGIONS", "/nonexistent", 1);
    static const struct broken nowhere = {"a directory that is not there", hide_file, REGION_LIMIT_FILE, 0644,
                                          "/nonexistent"};
    check_case(&nowhere, false);
    unsetenv("TRANCHE_REGIONS");
    static const struct broken unset = {"no variable", hide_file, REGION_LIMIT_FILE, 0644, "TRANCHE_REGIONS"};
    check_case(&unset, false);
    return checks_report();
}
