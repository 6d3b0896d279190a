/* Handles, and what identifies a GPU: index, UUID, PCI address, name, generation. */
#include <stdio.h>
#include <string.h>

#include "nvml_sim.h"

#define NVIDIA_PCI_VENDOR 0x10DEu
#define PCI_CLASS_DISPLAY 0x03u
#define PCI_SUBCLASS_3D 0x02u

enum { BINDINGS = 8 };

static struct nvmlDevice_st handles[SIM_MAX_INDICES][BINDINGS];

nvmlDevice_t device_handle(int gpu) {
    return (nvmlDevice_t){.handle = &handles[gpu][sim_mig_binding(gpu) % BINDINGS]};
}

nvmlReturn_t device_resolve_lost(nvmlDevice_t device, int *gpu) {
    nvmlReturn_t ret = library_ready();

    if (ret != NVML_SUCCESS)
        return ret;
    /* As numbers: pointers that are not into the table may not be subtracted or ordered. */
    uintptr_t offset = (uintptr_t)device.handle - (uintptr_t)handles;
    if (offset >= sizeof(handles))
        return NVML_ERROR_INVALID_ARGUMENT;
    *gpu = (int)(offset / sizeof(handles[0]));
    /* Of a MIG device that is gone, or of a GPU before it was bound anew. */
    if (sim_gpu(*gpu) == NULL || device.handle != device_handle(*gpu).handle)
        return NVML_ERROR_INVALID_ARGUMENT;
    return ordered_error(*gpu);
}

nvmlReturn_t device_resolve(nvmlDevice_t device, int *gpu) {
    nvmlReturn_t ret = device_resolve_lost(device, gpu);

    if (ret == NVML_SUCCESS && sim_gpu_lost(*gpu))
        return NVML_ERROR_GPU_IS_LOST;
    return ret;
}

int whole_gpu_count(void) {
    return sim_gpu_count();
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    nvmlReturn_t ret = library_ready();

    if (ret != NVML_SUCCESS)
        return ret;
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = (unsigned int)whole_gpu_count();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) {
    return nvmlDeviceGetCount_v2(count);
}

/* A GPU that was lost is still counted, but no handle to it is given out. */
static nvmlReturn_t give_handle(int gpu, nvmlDevice_t *device) {
    nvmlReturn_t ret = ordered_error(gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (sim_gpu_lost(gpu))
        return NVML_ERROR_GPU_IS_LOST;
    *device = device_handle(gpu);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    nvmlReturn_t ret = library_ready();

    if (ret != NVML_SUCCESS)
        return ret;
    if (device == NULL || index >= (unsigned int)whole_gpu_count())
        return NVML_ERROR_INVALID_ARGUMENT;
    return give_handle((int)index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    nvmlReturn_t ret = library_ready();

    if (ret != NVML_SUCCESS)
        return ret;
    if (uuid == NULL || device == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int gpu = 0; gpu < sim_index_count(); gpu++) {
        const struct sim_gpu *g = sim_gpu(gpu);

        if (g != NULL && strcmp(uuid, g->uuid) == 0)
            return give_handle(gpu, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device) {
    nvmlReturn_t ret = library_ready();

    if (ret != NVML_SUCCESS)
        return ret;
    if (uuid == NULL || device == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (uuid->version != nvmlUUID_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (uuid->type != NVML_UUID_TYPE_ASCII && uuid->type != NVML_UUID_TYPE_BINARY)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int gpu = 0; gpu < sim_index_count(); gpu++) {
        const struct sim_gpu *g = sim_gpu(gpu);
        if (g == NULL)
            continue;
        bool same = uuid->type == NVML_UUID_TYPE_ASCII
                        ? strncmp(uuid->value.str, g->uuid, sizeof(uuid->value.str)) == 0
                        : memcmp(uuid->value.bytes, g->uuid_bytes, sizeof(uuid->value.bytes)) == 0;
        if (same)
            return give_handle(gpu, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

struct pci_address {
    unsigned int domain, bus, device, function;
};

/* domain:bus:device.function, the domain and the function may be missing, hexadecimal. */
static bool parse_pci(const char *string, struct pci_address *pci) {
    int end = 0;

    *pci = (struct pci_address){0};
    if (sscanf(string, "%x:%x:%x%n", &pci->domain, &pci->bus, &pci->device, &end) != 3) {
        pci->domain = 0;
        if (sscanf(string, "%x:%x%n", &pci->bus, &pci->device, &end) != 2)
            return false;
    }
    string += end;
    if (*string == '.') {
        end = 0;
        if (sscanf(string, ".%x%n", &pci->function, &end) != 1)
            return false;
        string += end;
    }
    return *string == '\0';
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device) {
    struct pci_address wanted;
    nvmlReturn_t ret = library_ready();

    if (ret != NVML_SUCCESS)
        return ret;
    if (bus_id == NULL || device == NULL || !parse_pci(bus_id, &wanted))
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int gpu = 0; gpu < sim_gpu_count(); gpu++) {
        const struct sim_gpu *g = sim_gpu(gpu);
        if (g->pci_domain == wanted.domain && g->pci_bus == wanted.bus && g->pci_device == wanted.device &&
            wanted.function == 0)
            return give_handle(gpu, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    return ret != NVML_SUCCESS ? ret : copy_string(name, length, sim_gpu_or_last(gpu)->name);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    return ret != NVML_SUCCESS ? ret : copy_string(uuid, length, sim_gpu_or_last(gpu)->uuid);
}

/* The place of a MIG instance is that among those of its GPU. */
static unsigned int index_of(int gpu) {
    int devices[SIM_MIG_SEATS], count;
    unsigned int index = 0;

    if (gpu < sim_gpu_count())
        return (unsigned int)gpu;
    count = sim_mig_devices(sim_mig_parent(gpu), devices);
    for (int i = 0; i < count && devices[i] != gpu; i++)
        index++;
    return index;
}

/* Where a GPU stands in the driver's tables is known without asking the GPU. */
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    int gpu;
    nvmlReturn_t ret = device_resolve_lost(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (index == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *index = index_of(gpu);
    return NVML_SUCCESS;
}

DEVICE_QUERY(nvmlDeviceGetMinorNumber, unsigned int, (unsigned int)sim_gpu_or_last(gpu)->minor)
DEVICE_QUERY(nvmlDeviceGetModuleId, unsigned int, (unsigned int)gpu + 1)
DEVICE_QUERY(nvmlDeviceGetBoardId, unsigned int, sim_gpu_or_last(gpu)->pci_bus << 8)
DEVICE_QUERY(nvmlDeviceGetMultiGpuBoard, unsigned int, 0)
DEVICE_QUERY(nvmlDeviceGetBusType, nvmlBusType_t, NVML_BUS_TYPE_PCIE)

/* The serial number is written from the PCI address, so that it differs between the GPUs of a node. */
nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length) {
    int gpu;
    char string[NVML_DEVICE_SERIAL_BUFFER_SIZE];
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    snprintf(string, sizeof(string), "1650%09u", sim_gpu_or_last(gpu)->pci_bus << 8 | sim_gpu_or_last(gpu)->pci_device);
    return copy_string(serial, length, string);
}

static nvmlReturn_t constant_string(nvmlDevice_t device, char *buffer, unsigned int length, const char *string) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    return ret != NVML_SUCCESS ? ret : copy_string(buffer, length, string);
}

nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length) {
    return constant_string(device, version, length, "00.00.00.00.00");
}

nvmlReturn_t nvmlDeviceGetBoardPartNumber(nvmlDevice_t device, char *number, unsigned int length) {
    return constant_string(device, number, length, "SIMULATED");
}

nvmlReturn_t nvmlDeviceGetInforomImageVersion(nvmlDevice_t device, char *version, unsigned int length) {
    return constant_string(device, version, length, "G000.0000.00.00");
}

/* Device IDs of the models that the topologies name; 0 stands for a model that is not listed. */
static unsigned int pci_device_id(const char *name) {
    static const struct {
        const char *part;
        unsigned int id;
    } known[] = {{"H200", 0x2335},           {"H100", 0x2330}, {"B200", 0x2901},
                 {"A100-SXM4-40GB", 0x20B0}, {"A100", 0x20B2}, {"A30", 0x20B7},
                 {"L40S", 0x26B9},           {"L4", 0x27B8},   {"T4", 0x1EB8}};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strstr(name, known[i].part) != NULL)
            return known[i].id << 16 | NVIDIA_PCI_VENDOR;
    }
    return NVIDIA_PCI_VENDOR;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (info == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;

    const struct sim_gpu *g = sim_gpu_or_last(gpu);
    memset(info, 0, sizeof(*info));
    info->domain = g->pci_domain;
    info->bus = g->pci_bus;
    info->device = g->pci_device;
    info->pciDeviceId = pci_device_id(g->name);
    info->pciSubSystemId = info->pciDeviceId;
    snprintf(info->busIdLegacy, sizeof(info->busIdLegacy), NVML_DEVICE_PCI_BUS_ID_LEGACY_FMT, g->pci_domain & 0xFFFF,
             g->pci_bus & 0xFF, g->pci_device & 0x1F);
    snprintf(info->busId, sizeof(info->busId), NVML_DEVICE_PCI_BUS_ID_FMT, g->pci_domain, g->pci_bus & 0xFF,
             g->pci_device & 0x1F);
    return NVML_SUCCESS;
}

/* v2 has the fields of v3. */
nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *info) {
    return nvmlDeviceGetPciInfo_v3(device, info);
}

/* The first version knew the first three fields and the IDs only: a program built against it has no busId. */
nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *info) {
    nvmlPciInfo_t full;
    nvmlReturn_t ret = nvmlDeviceGetPciInfo_v3(device, &full);

    if (ret != NVML_SUCCESS)
        return ret;
    if (info == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    memcpy(info, &full, offsetof(nvmlPciInfo_t, busId));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *info) {
    nvmlPciInfo_t full;
    nvmlReturn_t ret = nvmlDeviceGetPciInfo_v3(device, &full);

    if (ret != NVML_SUCCESS)
        return ret;
    if (info == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != nvmlPciInfoExt_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    info->domain = full.domain;
    info->bus = full.bus;
    info->device = full.device;
    info->pciDeviceId = full.pciDeviceId;
    info->pciSubSystemId = full.pciSubSystemId;
    info->baseClass = PCI_CLASS_DISPLAY;
    info->subClass = PCI_SUBCLASS_3D;
    memcpy(info->busId, full.busId, sizeof(info->busId));
    return NVML_SUCCESS;
}

static nvmlBrandType_t brand_of(int gpu) {
    static const struct {
        const char *part;
        nvmlBrandType_t brand;
    } brands[] = {
        {"Tesla", NVML_BRAND_TESLA},   {"GeForce", NVML_BRAND_GEFORCE},       {"Quadro RTX", NVML_BRAND_QUADRO_RTX},
        {"Quadro", NVML_BRAND_QUADRO}, {"NVIDIA RTX", NVML_BRAND_NVIDIA_RTX}, {"TITAN", NVML_BRAND_TITAN},
    };

    for (size_t i = 0; i < sizeof(brands) / sizeof(brands[0]); i++) {
        if (strstr(sim_gpu_or_last(gpu)->name, brands[i].part) != NULL)
            return brands[i].brand;
    }
    return NVML_BRAND_NVIDIA;
}

DEVICE_QUERY(nvmlDeviceGetBrand, nvmlBrandType_t, brand_of(gpu))

static nvmlDeviceArchitecture_t architecture_of(int gpu) {
    int capability = sim_gpu_or_last(gpu)->cc_major * 10 + sim_gpu_or_last(gpu)->cc_minor;

    switch (sim_gpu_or_last(gpu)->cc_major) {
    case 3:
        return NVML_DEVICE_ARCH_KEPLER;
    case 5:
        return NVML_DEVICE_ARCH_MAXWELL;
    case 6:
        return NVML_DEVICE_ARCH_PASCAL;
    case 7:
        return capability >= 75 ? NVML_DEVICE_ARCH_TURING : NVML_DEVICE_ARCH_VOLTA;
    case 8:
        return capability >= 89 ? NVML_DEVICE_ARCH_ADA : NVML_DEVICE_ARCH_AMPERE;
    case 9:
        return NVML_DEVICE_ARCH_HOPPER;
    case 10:
    case 12:
        return NVML_DEVICE_ARCH_BLACKWELL;
    default:
        return NVML_DEVICE_ARCH_UNKNOWN;
    }
}

DEVICE_QUERY(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, architecture_of(gpu))

/* A driver that is too old to say so does not have the function either. */
nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_t *mode) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (sim_gpu_or_last(gpu)->addressing == SIM_ADDRESSING_UNKNOWN)
        return NVML_ERROR_NOT_SUPPORTED;
    if (mode == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (mode->version != nvmlDeviceAddressingMode_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    mode->value = (unsigned)sim_gpu_or_last(gpu)->addressing;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (major == NULL || minor == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *major = sim_gpu_or_last(gpu)->cc_major;
    *minor = sim_gpu_or_last(gpu)->cc_minor;
    return NVML_SUCCESS;
}

/* FP32 lanes of one SM: 64 up to compute capability 8.0, but for 6.1 and Maxwell, and 128 after it. */
static unsigned int cores_per_sm(int gpu) {
    int capability = sim_gpu_or_last(gpu)->cc_major * 10 + sim_gpu_or_last(gpu)->cc_minor;
    bool narrow = capability == 60 || (capability >= 70 && capability <= 80);

    return narrow ? 64 : 128;
}

DEVICE_QUERY(nvmlDeviceGetNumGpuCores, unsigned int, cores_per_sm(gpu) * (unsigned int)sim_gpu_or_last(gpu)->sm_count)

nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t device1, nvmlDevice_t device2, int *same) {
    int gpu1, gpu2;
    nvmlReturn_t ret = device_resolve(device1, &gpu1);

    if (ret == NVML_SUCCESS)
        ret = device_resolve(device2, &gpu2);
    if (ret != NVML_SUCCESS)
        return ret;
    if (same == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *same = gpu1 == gpu2;
    return NVML_SUCCESS;
}

/* The simulated node has one NUMA node and one host bridge. */
nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device1, nvmlDevice_t device2,
                                                 nvmlGpuTopologyLevel_t *level) {
    int gpu1, gpu2;
    nvmlReturn_t ret = device_resolve(device1, &gpu1);

    if (ret == NVML_SUCCESS)
        ret = device_resolve(device2, &gpu2);
    if (ret != NVML_SUCCESS)
        return ret;
    if (level == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *level = gpu1 == gpu2 ? NVML_TOPOLOGY_INTERNAL : NVML_TOPOLOGY_HOSTBRIDGE;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int size, unsigned long *set) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (size == 0 || set == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < size; i++)
        set[i] = ~0ul;
    return NVML_SUCCESS;
}
