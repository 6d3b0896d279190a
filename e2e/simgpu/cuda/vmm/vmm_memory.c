/* Physical memory that programs hold by handles: references, contents, sharing. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shared_objects.h"
#include "vmm.h"
#include "vmm_content.h"

pthread_mutex_t vmm_mutex = PTHREAD_MUTEX_INITIALIZER;

static struct handle_table memories = HANDLE_TABLE(8, 1 << 20);
_Static_assert(sizeof(struct vmm_memory) <= 1 << 8, "a memory must fit into its element");

struct vmm_memory *vmm_find_locked(CUmemGenericAllocationHandle handle) {
    struct vmm_memory *memory = (struct vmm_memory *)(uintptr_t)handle;

    return handle_valid(&memories, memory) && memory->handles > 0 ? memory : NULL;
}

CUresult vmm_hold(CUmemGenericAllocationHandle handle, struct vmm_memory **memory) {
    REQUIRE_INITIALISED();
    pthread_mutex_lock(&vmm_mutex);
    *memory = vmm_find_locked(handle);
    if (*memory != NULL)
        (*memory)->references++;
    pthread_mutex_unlock(&vmm_mutex);
    return *memory != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

struct vmm_memory *vmm_new_locked(void) {
    struct vmm_memory *memory = handle_new(&memories);

    if (memory != NULL)
        memory->references = 1;
    return memory;
}

void vmm_drop_locked(struct vmm_memory *memory) {
    if (--memory->references > 0)
        return;
    if (memory->multicast)
        multicast_gone_locked(memory);
    if (memory->object != 0)
        sim_shared_drop(memory->object);
    else if (!memory->multicast)
        content_free(memory->content, memory->size);
    if (!memory->imported && !memory->multicast && memory->device != CU_DEVICE_CPU) {
        if (memory->object == 0)
            sim_release(driver->gpus[memory->device], memory->size, memory);
        sim_count_allocation(driver->gpus[memory->device], -1);
    }
    handle_delete(&memories, memory);
}

void vmm_drop(struct vmm_memory *memory) {
    pthread_mutex_lock(&vmm_mutex);
    vmm_drop_locked(memory);
    pthread_mutex_unlock(&vmm_mutex);
}

/* ---- Sharing. The object's words say what its properties are. ---- */

enum { WORD_LOCATION, WORD_FLAGS };

static void show_again(struct range *range, void *memory) {
    if (range->memory == memory)
        range_show_locked(range);
}

CUresult vmm_share_locked(struct vmm_memory *memory) {
    int gpu = driver->gpus[memory->device == CU_DEVICE_CPU ? 0 : memory->device];
    struct sim_shared_about about;
    uint64_t object;

    if (memory->object != 0)
        return CUDA_SUCCESS;
    REQUIRE(sim_shared_new(SIM_SHARED_MEMORY, gpu, memory->size, &object) == 0, CUDA_ERROR_OUT_OF_MEMORY);
    about = sim_shared_about(object);
    atomic_store(&about.words[WORD_LOCATION],
                 (uint64_t)memory->prop.location.type << 32 | (uint32_t)memory->prop.location.id);
    atomic_store(&about.words[WORD_FLAGS], (uint64_t)memory->prop.allocFlags.compressionType << 24 |
                                               (uint64_t)memory->prop.allocFlags.gpuDirectRDMACapable << 16 |
                                               memory->prop.allocFlags.usage);
    if (memory->device != CU_DEVICE_CPU && sim_shared_adopt(object, memory->size, memory) != 0) {
        sim_shared_drop(object);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    content_to_object(memory->content, memory->size, object);
    content_free(memory->content, memory->size);
    memory->object = object;
    ranges_each_locked(show_again, memory);
    return CUDA_SUCCESS;
}

static CUdevice device_of(int gpu) {
    for (CUdevice device = 0; device < driver->device_count; device++) {
        if (driver->gpus[device] == gpu)
            return device;
    }
    return CU_DEVICE_INVALID;
}

/* Any handle to the memory has the properties that it was made with, under this process's name for the GPU. */
static void take_properties(struct vmm_memory *memory, const struct sim_shared_about *about) {
    uint64_t location = atomic_load(&about->words[WORD_LOCATION]), flags = atomic_load(&about->words[WORD_FLAGS]);
    CUmemAllocationProp *prop = &memory->prop;

    prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop->location.type = location != 0 ? (CUmemLocationType)(location >> 32) : CU_MEM_LOCATION_TYPE_DEVICE;
    prop->location.id = (int)(uint32_t)location;
    prop->allocFlags.compressionType = (unsigned char)(flags >> 24);
    prop->allocFlags.gpuDirectRDMACapable = (unsigned char)(flags >> 16);
    prop->allocFlags.usage = (unsigned short)flags;
    memory->device = CU_DEVICE_CPU;
    if (prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        memory->device = prop->location.id = device_of(about->gpu);
}

CUresult vmm_adopt_locked(uint64_t object, struct vmm_memory **out) {
    struct sim_shared_about about = sim_shared_about(object);
    struct vmm_memory *memory = vmm_new_locked();

    if (memory == NULL) {
        sim_shared_drop(object);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory->object = object;
    memory->imported = true;
    memory->size = about.size;
    take_properties(memory, &about);
    if (memory->device == CU_DEVICE_INVALID) {
        vmm_drop_locked(memory);
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *out = memory;
    return CUDA_SUCCESS;
}
