/* The clients of a server: their contexts, their faults, their ends. */
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../sharing.h"
#include "log.h"
#include "server.h"

struct client clients[MPS_MAX_CLIENTS];
unsigned client_count;

static uint64_t namespace_of(pid_t pid) {
    char path[64];
    struct stat info;

    snprintf(path, sizeof(path), "/proc/%d/ns/pid", pid);
    return stat(path, &info) == 0 ? (uint64_t)info.st_ino : 0;
}

static struct mps_client_entry *free_entry(void) {
    for (unsigned i = 0; i < MPS_MAX_CLIENTS; i++) {
        if (atomic_load(&shared->clients[i].pid) == 0)
            return &shared->clients[i];
    }
    return NULL;
}

static void log_status(const struct mps_client_entry *entry, const char *status) {
    mps_log("Volta MPS: status of client {%u, %u} is %s", entry->pid, entry->id, status);
}

/* ---- Coming ---- */

static void fill_entry(struct mps_client_entry *entry, pid_t pid, const struct mps_message *hello) {
    static uint32_t ids;
    uint32_t most = atomic_load(&shared->percentage), percentage = hello->value;

    for (int i = 0; i < SIM_MAX_GPUS; i++)
        atomic_store(&entry->contexts[i], 0);
    atomic_store(&entry->error, 0);
    atomic_store(&entry->id, ids++);
    atomic_store(&entry->percentage, percentage > 0 && percentage < most ? percentage : most);
    atomic_store(&entry->pid_namespace, namespace_of(pid));
    snprintf(entry->namespace, sizeof(entry->namespace), "%.*s", MPS_NAME - 1, hello->text);
    atomic_store(&entry->pid, (uint32_t)pid);
}

void client_adopt(int fd, const struct mps_message *hello) {
    struct mps_message answer = {.kind = MPS_WELCOME, .a = server_name()};
    struct mps_client_entry *entry = free_entry();
    pid_t pid = mps_peer(fd).pid;

    if (atomic_load(&shared->status) == MPS_FAULT)
        answer.result = MPS_ERROR_SERVER_NOT_READY;
    else if (entry == NULL)
        answer.result = MPS_ERROR_MAX_CLIENTS_REACHED;
    if (answer.result != 0) {
        mps_log("Client %d was refused: CUDA error %d", pid, answer.result);
        mps_send(fd, &answer, -1);
        close(fd);
        return;
    }
    fill_entry(entry, pid, hello);
    answer.b = hello->b;
    answer.index = (uint32_t)(entry - shared->clients);
    answer.value = entry->percentage;
    snprintf(answer.text, sizeof(answer.text), "%s", shared_name());
    clients[client_count++] = (struct client){.fd = fd, .entry = entry, .name = hello->a};
    mps_log("New client %d connected", pid);
    mps_send(fd, &answer, -1);
}

/* ---- Going ---- */

static void recover(void) {
    if (atomic_load(&shared->status) != MPS_FAULT)
        return;
    for (unsigned i = 0; i < client_count; i++) {
        if (clients[i].faulted)
            return;
    }
    for (uint32_t i = 0; i < shared->device_count; i++) {
        mps_log("Volta MPS: Destroy server context on device %u", i);
        mps_log("Volta MPS: Creating server context on device %u", i);
    }
    atomic_store(&shared->status, MPS_ACTIVE);
}

static void drop(unsigned client) {
    struct mps_client_entry *entry = clients[client].entry;

    close(clients[client].fd);
    mps_log("Client {%u, %u} exit", entry->pid, entry->id);
    mps_log("Client %u disconnected", entry->pid);
    atomic_store(&entry->pid, 0);
    clients[client] = clients[--client_count];
    recover();
}

int clients_terminate(uint32_t pid) {
    int result = MPS_ERROR_INVALID_VALUE;

    for (unsigned i = 0; i < client_count; i++) {
        struct mps_client_entry *entry = clients[i].entry;

        if (entry->pid != pid)
            continue;
        result = 0;
        log_status(entry, "INACTIVE");
        atomic_store(&entry->error, MPS_ERROR_CLIENT_TERMINATED);
        for (int device = 0; device < SIM_MAX_GPUS; device++)
            atomic_store(&entry->contexts[device], 0);
    }
    return result;
}

/* ---- Faults ---- */

static uint32_t devices_of(const struct mps_client_entry *entry) {
    uint32_t mask = 0;

    for (uint32_t i = 0; i < shared->device_count; i++) {
        if (atomic_load(&entry->contexts[i]) != 0)
            mask |= 1u << i;
    }
    return mask;
}

/* A fault spreads over the devices that clients share with it, one after another. */
static uint32_t spread(uint32_t mask) {
    for (uint32_t before = 0; before != mask;) {
        before = mask;
        for (unsigned i = 0; i < client_count; i++) {
            if ((devices_of(clients[i].entry) & mask) != 0)
                mask |= devices_of(clients[i].entry);
        }
    }
    return mask;
}

static void handle_fault(const struct client *by, uint32_t device, uint32_t result) {
    uint32_t mask = spread(1u << device);

    mps_log("Volta MPS: Server is handling a fatal GPU error.");
    mps_log("Volta MPS: client %u caused it: CUDA error %u", by->entry->pid, result);
    mps_log("Volta MPS: The following devices");
    for (uint32_t i = 0; i < shared->device_count; i++) {
        if ((mask & 1u << i) != 0)
            mps_log("%u", i);
    }
    mps_log("Volta MPS: The following clients have a sticky error set:");
    atomic_store(&shared->status, MPS_FAULT);
    for (unsigned i = 0; i < client_count; i++) {
        if (&clients[i] != by && (devices_of(clients[i].entry) & mask) == 0)
            continue;
        log_status(clients[i].entry, "INACTIVE");
        mps_log("%u", clients[i].entry->pid);
        clients[i].faulted = true;
        atomic_store(&clients[i].entry->error, result);
    }
}

/* ---- What clients ask ---- */

static int context_new(struct mps_client_entry *entry, uint32_t device) {
    uint32_t contexts = 0;

    if (atomic_load(&shared->status) == MPS_FAULT)
        return MPS_ERROR_SERVER_NOT_READY;
    for (unsigned i = 0; i < client_count; i++)
        contexts += atomic_load(&clients[i].entry->contexts[device]);
    if (contexts >= devices[device].most_contexts) {
        mps_log("Client %u gets no context on device %u: clients have %u already", entry->pid, device, contexts);
        return MPS_ERROR_MAX_CLIENTS_REACHED;
    }
    if (atomic_fetch_add(&entry->contexts[device], 1) == 0)
        log_status(entry, "ACTIVE");
    return 0;
}

static void context_gone(struct mps_client_entry *entry, uint32_t device) {
    if (atomic_load(&entry->contexts[device]) > 0)
        atomic_fetch_sub(&entry->contexts[device], 1);
}

static void answer(struct client *client, struct mps_message *m) {
    struct mps_client_entry *entry = client->entry;
    uint32_t error = atomic_load(&entry->error);
    struct sim_turn turn;

    m->result = (int32_t)error;
    if (m->index >= shared->device_count) {
        m->result = MPS_ERROR_INVALID_VALUE;
        return;
    }
    if (m->kind == MPS_CONTEXT_GONE)
        context_gone(entry, m->index);
    else if (m->kind == MPS_CONTEXT_NEW && error == 0)
        m->result = context_new(entry, m->index);
    else if (m->kind == MPS_FATAL && error == 0)
        handle_fault(client, m->index, m->value);
    else if (m->kind == MPS_TURN && error == 0) {
        turn = turn_book(m->index, entry->percentage, m->a, m->b);
        /* Here, not by the client, which may be stopped meanwhile. */
        sim_count_busy(client->name, devices[m->index].gpu, turn.end_ns - turn.start_ns);
        m->a = turn.start_ns;
        m->b = turn.end_ns;
    }
}

bool client_attend(unsigned client) {
    struct mps_message message = {0};

    if (!mps_receive(clients[client].fd, &message, NULL)) {
        drop(client);
        return false;
    }
    answer(&clients[client], &message);
    mps_send(clients[client].fd, &message, -1);
    return true;
}
