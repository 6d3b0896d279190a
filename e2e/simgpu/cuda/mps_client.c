#include "mps_client.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../mps/mps.h"
#include "../shared_objects.h"
#include "../sharing.h"
#include "../visible.h"

static struct {
    pthread_mutex_t mutex; /* around a question and its answer */
    bool active;
    int fd;
    uint64_t server; /* its name in the state */
    uint32_t percentage;
    uint64_t limit_bytes; /* the namespace's, 0: none */
    const struct mps_shared *shared;
    const struct mps_client_entry *entry;
    uint32_t devices[SIM_MAX_GPUS]; /* [ordinal of CUDA]: the server's number */
    _Atomic int error;
} client = {.mutex = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

bool mps_client(void) {
    return client.active;
}

/* ---- Connecting ---- */

/* The server's file, which this process must find by its name: what a container without the daemon's /dev/shm does not. */
static bool map_shared(const char *name) {
    char path[128];
    struct stat info;
    void *mapped = MAP_FAILED;
    int fd;

    snprintf(path, sizeof(path), MPS_SHM_DIRECTORY "/%s", name);
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return false;
    if (fstat(fd, &info) == 0 && info.st_size == (off_t)sizeof(*client.shared))
        mapped = mmap(NULL, sizeof(*client.shared), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped == MAP_FAILED)
        return false;
    client.shared = mapped;
    return memcmp(client.shared->magic, MPS_MAGIC, sizeof(client.shared->magic)) == 0 &&
           client.shared->version == MPS_VERSION && client.shared->size == sizeof(*client.shared);
}

static CUresult greet(void) {
    struct mps_message hello = {.kind = MPS_HELLO, .a = sim_shared_process()}, welcome = {0};

    mps_parse_percentage(getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), &hello.value);
    if (!mps_send(client.fd, &hello, -1) || !mps_receive(client.fd, &welcome, NULL) || welcome.kind != MPS_WELCOME)
        return CUDA_ERROR_MPS_CONNECTION_FAILED;
    if (welcome.result != 0)
        return (CUresult)welcome.result;
    if (welcome.index >= MPS_MAX_CLIENTS || !map_shared(welcome.text))
        return CUDA_ERROR_MPS_CONNECTION_FAILED;
    client.entry = &client.shared->clients[welcome.index];
    client.percentage = welcome.value;
    client.server = welcome.a;
    client.limit_bytes = welcome.b;
    return CUDA_SUCCESS;
}

CUresult mps_client_connect(void) {
    CUresult ret;

    atomic_store(&client.error, 0);
    client.fd = mps_connect(mps_pipe_path("control"));
    if (client.fd < 0)
        return CUDA_SUCCESS; /* without MPS, then */
    ret = greet();
    client.active = ret == CUDA_SUCCESS;
    if (!client.active)
        mps_client_disconnect();
    return ret;
}

void mps_client_disconnect(void) {
    if (client.shared != NULL)
        munmap((void *)(uintptr_t)client.shared, sizeof(*client.shared));
    if (client.fd >= 0)
        close(client.fd);
    client.shared = NULL;
    client.entry = NULL;
    client.fd = -1;
    client.active = false;
}

/* ---- GPUs ---- */

int mps_client_gpus(int *gpus) {
    int found[SIM_MAX_INDICES], all = visible_all(found), count = 0;

    for (uint32_t device = 0; device < client.shared->device_count && device < SIM_MAX_GPUS; device++) {
        for (int i = 0; i < all; i++) {
            if (sim_gpu(found[i]) != NULL && strcmp(sim_gpu(found[i])->uuid, client.shared->uuid[device]) == 0)
                gpus[count++] = found[i];
        }
    }
    return count;
}

/* In a namespace, a list that names a GPU which the client does not have ends all of its limits, the namespace's, too: so
 * it was measured (ai-dynamo's guide on limits with MPS, driver 615.71.09). */
static bool limits_void(const char *list) {
    return mps_client_namespace() && !mps_limits_name_devices(list, client.shared);
}

bool mps_client_namespace(void) {
    return client.active && client.entry->namespace[0] != '\0';
}

void mps_client_begin(void) {
    const char *list = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");

    sim_mps_join(client.server);
    if (limits_void(list))
        return;
    for (CUdevice ordinal = 0; ordinal < driver->device_count; ordinal++) {
        const char *uuid = device_gpu(ordinal)->uuid;
        uint32_t device = 0;

        while (device + 1 < client.shared->device_count && strcmp(client.shared->uuid[device], uuid) != 0)
            device++;
        client.devices[ordinal] = device;
        sim_limit(
            driver->gpus[ordinal],
            mps_smaller_limit(client.limit_bytes, mps_smaller_limit(atomic_load(&client.shared->limit_bytes[device]),
                                                                    mps_limit_in(list, device, uuid))));
    }
}

int mps_client_multiprocessors(CUdevice device) {
    if (!client.active)
        return device_gpu(device)->sm_count;
    return (int)mps_multiprocessors((uint32_t)device_gpu(device)->sm_count, client.percentage);
}

/* ---- Errors ---- */

static void fail(int error) {
    int none = 0;

    atomic_compare_exchange_strong(&client.error, &none, error);
}

CUresult mps_client_error(void) {
    struct pollfd connection = {.fd = client.fd, .events = POLLRDHUP};
    int error;

    if (!client.active)
        return CUDA_SUCCESS;
    /* What the server has said before it ended counts more than its end. */
    error = (int)atomic_load(&client.entry->error);
    if (error == 0 && poll(&connection, 1, 0) > 0)
        error = CUDA_ERROR_MPS_RPC_FAILURE;
    if (error != 0)
        fail(error);
    return (CUresult)atomic_load(&client.error);
}

/* ---- Questions ---- */

static CUresult ask(struct mps_message *message) {
    bool answered;

    pthread_mutex_lock(&client.mutex);
    answered = mps_send(client.fd, message, -1) && mps_receive(client.fd, message, NULL);
    pthread_mutex_unlock(&client.mutex);
    if (!answered) {
        fail(CUDA_ERROR_MPS_RPC_FAILURE);
        return (CUresult)atomic_load(&client.error);
    }
    return (CUresult)message->result;
}

CUresult mps_client_context_new(CUdevice device) {
    struct mps_message message = {.kind = MPS_CONTEXT_NEW, .index = client.devices[device]};

    return client.active ? ask(&message) : CUDA_SUCCESS;
}

void mps_client_context_gone(CUdevice device) {
    struct mps_message message = {.kind = MPS_CONTEXT_GONE, .index = client.devices[device]};

    if (client.active)
        ask(&message);
}

bool mps_client_turn(CUdevice device, uint64_t want_ns, uint64_t not_before_ns, struct sim_turn *turn) {
    struct mps_message message = {.kind = MPS_TURN, .index = client.devices[device], .a = want_ns, .b = not_before_ns};

    if (ask(&message) != CUDA_SUCCESS || message.b < message.a)
        return false;
    *turn = (struct sim_turn){message.a, message.b};
    return true;
}

void mps_client_fatal(CUdevice device, CUresult result) {
    struct mps_message message = {.kind = MPS_FATAL, .index = client.devices[device], .value = result};

    ask(&message);
}
