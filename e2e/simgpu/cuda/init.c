/* cuInit: which GPUs there are for this process. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda/memory/heap.h"
#include "driver.h"
#include "mps_client.h"
#include "topology.h"
#include "visible.h"

struct driver *driver;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
/* Whose threads initialise, or have. Not wiped by fork: a child of theirs cannot, and must not wait for the mutex, which one of
 * them may have held. */
static _Atomic pid_t initialiser;

static bool make_driver(void) {
    void *page;

    if (driver != NULL)
        return true;
    page = mmap(NULL, sizeof(*driver), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return false;
    if (madvise(page, sizeof(*driver), MADV_WIPEONFORK) != 0) {
        munmap(page, sizeof(*driver));
        return false;
    }
    driver = page;
    return true;
}

static int find_devices(int *gpus) {
    int found[SIM_MAX_INDICES], count = mps_client() ? mps_client_gpus(found) : visible_all(found);

    count = visible_apply(getenv("CUDA_VISIBLE_DEVICES"), found, count);
    memcpy(gpus, found, (size_t)count * sizeof(*gpus));
    return count;
}

/* Before anything is taken of them: a MIG device is this process's only one, and for good. */
static CUresult open_devices(void) {
    sim_opens(driver->gpus, driver->device_count);
    if (sim_gpu(driver->gpus[0]) == NULL || (sim_gpu(driver->gpus[0])->is_mig && sim_bind(driver->gpus[0]) != 0))
        return CUDA_ERROR_NO_DEVICE;
    return CUDA_SUCCESS;
}

static uint64_t kernel_ns(void) {
    const char *text = getenv("SIMGPU_KERNEL_US");
    char *end;
    unsigned long long us;

    if (text == NULL || *text == '\0')
        return (uint64_t)sim_topology()->kernel_us * 1000;
    us = strtoull(text, &end, 10);
    return *end == '\0' ? us * 1000 : (uint64_t)sim_topology()->kernel_us * 1000;
}

static CUresult open_result(int error) {
    switch (error) {
    case 0:
        return CUDA_SUCCESS;
    case -ENODEV:
        return CUDA_ERROR_NO_DEVICE;
    case -ENOMEM:
        return CUDA_ERROR_OUT_OF_MEMORY;
    case -EPROTO:
    case -ESTALE:
        return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    default:
        return CUDA_ERROR_UNKNOWN;
    }
}

/* With the state open, and the MPS server where there is one. */
static CUresult begin(void) {
    driver->device_count = find_devices(driver->gpus);
    REQUIRE(driver->device_count != 0, CUDA_ERROR_NO_DEVICE);
    driver->kernel_ns = kernel_ns();
    driver->wake_ns = (uint64_t)sim_topology()->wake_us * 1000;
    REQUIRE(heap_init(), CUDA_ERROR_OUT_OF_MEMORY);
    TRY(open_devices());
    if (mps_client())
        mps_client_begin();
    return CUDA_SUCCESS;
}

static CUresult initialise(void) {
    CUresult ret;

    if (!make_driver())
        return CUDA_ERROR_OUT_OF_MEMORY;
    ret = open_result(sim_open());
    if (ret != CUDA_SUCCESS)
        return ret;
    ret = sim_join() == 0 ? mps_client_connect() : CUDA_ERROR_OUT_OF_MEMORY;
    if (ret == CUDA_SUCCESS)
        ret = begin();
    if (ret != CUDA_SUCCESS) {
        mps_client_disconnect();
        sim_close();
        return ret;
    }
    atomic_store(&driver->initialised, true);
    return CUDA_SUCCESS;
}

CUresult cuInit(unsigned int Flags) {
    pid_t nobody = 0;
    CUresult ret;

    REQUIRE(Flags == 0, CUDA_ERROR_INVALID_VALUE);
    if (driver_ready())
        return CUDA_SUCCESS;
    if (!atomic_compare_exchange_strong(&initialiser, &nobody, getpid()) && nobody != getpid())
        return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&mutex);
    atomic_store(&initialiser, getpid()); /* another of its threads may have failed meanwhile */
    ret = driver_ready() ? CUDA_SUCCESS : initialise();
    if (ret != CUDA_SUCCESS)
        atomic_store(&initialiser, 0);
    pthread_mutex_unlock(&mutex);
    return ret;
}

int driver_version(void) {
    static _Atomic int version;
    struct sim_topology topology;
    const char *path = getenv("SIMGPU_TOPOLOGY");
    char error[256];

    if (version == 0) {
        if (topology_read(path != NULL && *path != '\0' ? path : "/run/simgpu/topology", &topology, error,
                          sizeof(error)) != 0)
            return 0;
        version = topology.cuda_version;
    }
    return version;
}

/* The version is known without cuInit, even where there is no GPU. */
CUresult cuDriverGetVersion(int *driverVersion) {
    REQUIRE(driverVersion != NULL, CUDA_ERROR_INVALID_VALUE);
    *driverVersion = driver_version();
    return *driverVersion != 0 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}
