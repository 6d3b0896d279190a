/* Memory as one process sees it: sizes, packing, contents, errors. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "harness.h"

/* Bytes of GPU 0 beyond one context. */
static int64_t taken(void) {
    return (int64_t)look("test").used[0] - (int64_t)GPU0_CONTEXT;
}

static void sizes_are_rounded_up_to_2_mib(void) {
    static const struct {
        uint64_t size, takes;
    } cases[] = {
        {1, 2 * MIB},       {MIB - 1, 2 * MIB},     {MIB, 2 * MIB},
        {2 * MIB, 2 * MIB}, {2 * MIB + 1, 4 * MIB}, {33 * MIB, 34 * MIB},
    };
    CUdeviceptr pointer;

    context_on(0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        OK(cuMemAlloc_v2(&pointer, cases[i].size));
        CHECK_INT(taken(), cases[i].takes);
        OK(cuMemFree_v2(pointer));
        CHECK_INT(taken(), 0);
    }
}

static void small_allocations_are_packed(void) {
    CUdeviceptr pointers[8], big;

    context_on(0);
    for (int i = 0; i < 8; i++) {
        OK(cuMemAlloc_v2(&pointers[i], 256 * 1024));
        CHECK_INT(pointers[i] % 512, 0);
        CHECK_INT(taken(), 2 * MIB);
    }
    for (int i = 1; i < 8; i++)
        CHECK_INT(pointers[i] / (2 * MIB), pointers[0] / (2 * MIB));
    OK(cuMemAlloc_v2(&big, 1));
    CHECK(big / (2 * MIB) != pointers[0] / (2 * MIB));
    CHECK_INT(taken(), 4 * MIB);
    OK(cuMemFree_v2(big));
    CHECK_INT(taken(), 2 * MIB);
    for (int i = 0; i < 8; i++) {
        CHECK_INT(taken(), 2 * MIB);
        OK(cuMemFree_v2(pointers[i]));
    }
    CHECK_INT(taken(), 0);
}

static void big_and_small_do_not_share_a_block(void) {
    CUdeviceptr small, big;

    context_on(0);
    OK(cuMemAlloc_v2(&big, MIB));
    OK(cuMemAlloc_v2(&small, 100));
    CHECK(small / (2 * MIB) != big / (2 * MIB));
    CHECK_INT(big % (2 * MIB), 0);
    CHECK_INT(taken(), 4 * MIB);
}

static void holes_are_used_again(void) {
    CUdeviceptr pointers[4096], again;

    context_on(0);
    for (int i = 0; i < 4096; i++)
        OK(cuMemAlloc_v2(&pointers[i], 512));
    CHECK_INT(taken(), 2 * MIB);
    for (int i = 0; i < 4096; i += 2)
        OK(cuMemFree_v2(pointers[i]));
    for (int i = 0; i < 4096; i += 2)
        OK(cuMemAlloc_v2(&pointers[i], 100));
    CHECK_INT(taken(), 2 * MIB);
    OK(cuMemFree_v2(pointers[1000]));
    OK(cuMemFree_v2(pointers[1001]));
    OK(cuMemAlloc_v2(&again, 1024));
    CHECK_INT(again, pointers[1000] < pointers[1001] ? pointers[1000] : pointers[1001]);
    CHECK_INT(taken(), 2 * MIB);
}

static void contexts_do_not_share_blocks(void) {
    CUdeviceptr a, b;

    context_on(0);
    OK(cuMemAlloc_v2(&a, 100));
    context_on(0);
    OK(cuMemAlloc_v2(&b, 100));
    CHECK_INT(taken(), GPU0_CONTEXT + 4 * MIB);
}

static void bad_frees_are_refused(void) {
    CUdeviceptr small, big, managed;
    void *host;
    int local = 0;

    context_on(0);
    OK(cuMemAlloc_v2(&small, 2000));
    OK(cuMemAlloc_v2(&big, 10 * MIB));
    OK(cuMemAllocManaged(&managed, 5, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemAllocHost_v2(&host, 4096));
    OK(cuMemFree_v2(0));
    CHECK_INT(cuMemFree_v2(small + 512), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemFree_v2(small + 1), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemFree_v2(big + 2 * MIB), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemFree_v2(big + 512), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemFree_v2((uintptr_t)&local), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemFree_v2((uintptr_t)host), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemFree_v2(1), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemFree_v2(UINT64_MAX), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree_v2(small));
    CHECK_INT(cuMemFree_v2(small), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree_v2(big));
    CHECK_INT(cuMemFree_v2(big), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree_v2(managed));
    OK(cuMemFreeHost(host));
    CHECK_INT(cuMemFreeHost(host), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(taken(), 0);
}

static void bad_allocations_are_refused(void) {
    CUdeviceptr pointer;
    size_t pitch;

    context_on(0);
    CHECK_INT(cuMemAlloc_v2(&pointer, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemAlloc_v2(NULL, 1), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemAlloc_v2(&pointer, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_INT(cuMemAlloc_v2(&pointer, SIZE_MAX / 2), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_INT(cuMemAlloc_v2(&pointer, GPU0_BYTES), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_INT(cuMemAllocManaged(&pointer, 1, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemAllocPitch_v2(&pointer, &pitch, 0, 1, 4), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemAllocPitch_v2(&pointer, &pitch, 1, 0, 4), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemAllocPitch_v2(&pointer, &pitch, 1, 1, 3), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(taken(), 0);
}

static void pitch(void) {
    CUdeviceptr pointer;
    size_t pitch_bytes;

    context_on(0);
    OK(cuMemAllocPitch_v2(&pointer, &pitch_bytes, 1000, 2048, 4));
    CHECK_INT(pitch_bytes, 1024);
    CHECK_INT(taken(), 2 * MIB);
    OK(cuMemFree_v2(pointer));
    CHECK_INT(taken(), 0);
}

static void mem_get_info_tells_of_the_whole_gpu(void) {
    CUdeviceptr pointer;
    size_t free, total;

    context_on(0);
    OK(cuMemGetInfo_v2(&free, &total));
    CHECK_INT(total, GPU0_BYTES);
    CHECK_INT(free, GPU0_BYTES - GPU0_CONTEXT);
    OK(cuMemAlloc_v2(&pointer, 7 * MIB));
    OK(cuMemGetInfo_v2(&free, &total));
    CHECK_INT(free, GPU0_BYTES - GPU0_CONTEXT - 8 * MIB);
    CHECK_INT(cuMemGetInfo_v2(NULL, &total), CUDA_ERROR_INVALID_VALUE);
}

static void old_pointers_have_32_bits(void) {
    unsigned free, total, size, pitch_bytes;
    CUdeviceptr_v1 a, b, base;
    char text[4] = "";

    context_on(0);
    OK(cuMemAlloc(&a, 3 * MIB));
    OK(cuMemAlloc(&b, 100));
    CHECK_INT(taken(), 6 * MIB);
    OK(cuMemcpyHtoD_v2(b, "abc", 4));
    OK(cuMemcpyDtoH_v2(text, b, 4));
    CHECK(strcmp(text, "abc") == 0);
    OK(cuMemGetAddressRange(&base, &size, a + 100));
    CHECK_INT(base, a);
    CHECK_INT(size, 3 * MIB);
    OK(cuMemFree(a));
    OK(cuMemFree(b));
    OK(cuMemAllocPitch(&a, &pitch_bytes, 100, 100, 4));
    OK(cuMemFree(a));
    CHECK_INT(taken(), 0);
    OK(cuMemGetInfo(&free, &total));
    CHECK_INT(total, GPU0_BYTES);
    OK(cuDeviceTotalMem(&total, 1));
    CHECK_INT(total, GPU1_BYTES);
}

static void old_copies_have_32_bits(void) {
    const CUDA_ARRAY_DESCRIPTOR_v1 descriptor = {16, 2, CU_AD_FORMAT_UNSIGNED_INT8, 1};
    char text[32] = "";
    CUdeviceptr_v1 a;
    CUarray array, other;
    CUDA_MEMCPY2D_v1 box = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                            .srcXInBytes = 1,
                            .srcPitch = 8,
                            .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                            .dstY = 1,
                            .WidthInBytes = 3,
                            .Height = 1};
    CUDA_MEMCPY3D_v1 cube = {.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                             .srcY = 1,
                             .dstMemoryType = CU_MEMORYTYPE_HOST,
                             .dstHost = text,
                             .dstPitch = 8,
                             .dstXInBytes = 2,
                             .WidthInBytes = 3,
                             .Height = 1,
                             .Depth = 1};

    CHECK_INT(cuMemcpy2D(&box), CUDA_ERROR_NOT_INITIALIZED);
    context_on(0);
    OK(cuMemAlloc(&a, 100));
    OK(cuArrayCreate(&array, &descriptor));
    OK(cuArrayCreate(&other, &descriptor));
    OK(cuMemcpyHtoD(a, "abcdefg", 8));
    OK(cuMemcpyDtoD(a + 8, a, 8));
    OK(cuMemcpyDtoHAsync(text, a + 8, 8, NULL));
    OK(cuCtxSynchronize());
    CHECK(strcmp(text, "abcdefg") == 0);
    OK(cuMemcpyDtoA(array, 1, a, 4));
    OK(cuMemcpyAtoA(other, 0, array, 1, 4));
    OK(cuMemcpyAtoD(a + 16, other, 0, 4));
    OK(cuMemcpyDtoH(text, a + 16, 4));
    CHECK(strcmp(text, "abcdefg") == 0);
    box.srcDevice = a;
    box.dstArray = cube.srcArray = array;
    OK(cuMemcpy2D(&box));
    OK(cuMemcpy3D(&cube));
    CHECK(strcmp(text, "abbcdfg") == 0);
    OK(cuMemsetD2D16(a, 8, 0x7878, 2, 2));
    OK(cuMemsetD8(a + 4, 0, 1));
    OK(cuMemcpyDtoH(text, a, 16));
    CHECK(strcmp(text, "xxxx") == 0 && memcmp(text + 8, "xxxxefg", 8) == 0);
    CHECK_INT(cuMemcpyDtoH(text, a, 200), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemcpy2D(NULL), CUDA_ERROR_INVALID_VALUE);
}

static void contents_are_kept(void) {
    CUdeviceptr a, b;
    char text[64] = "";
    unsigned words[4];

    context_on(0);
    OK(cuMemAlloc_v2(&a, 1000));
    OK(cuMemAlloc_v2(&b, 3 * MIB));
    OK(cuMemcpyHtoD_v2(a, "hello", 6));
    OK(cuMemcpyDtoD_v2(b + 2 * MIB, a, 6));
    OK(cuMemcpyDtoH_v2(text, b + 2 * MIB, 6));
    CHECK(strcmp(text, "hello") == 0);
    OK(cuMemcpy((uintptr_t)text, a + 1, 5));
    CHECK(strcmp(text, "ello") == 0);
    OK(cuMemsetD8_v2(a, 'x', 3));
    OK(cuMemcpyDtoHAsync_v2(text, a, 6, NULL));
    CHECK(strcmp(text, "xxxlo") == 0);
    OK(cuMemsetD32_v2(b, 0x12345678, 4));
    OK(cuMemsetD16_v2(b + 4, 0xabcd, 2));
    OK(cuMemcpyDtoH_v2(words, b, 16));
    CHECK_INT(words[0], 0x12345678);
    CHECK_INT(words[1], 0xabcdabcd);
    CHECK_INT(words[3], 0x12345678);
    CHECK_INT(cuMemsetD32_v2(b + 1, 0, 1), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemcpyHtoD_v2(a, text, 1001), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemcpyHtoD_v2(b + 3 * MIB - 1, text, 2), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemcpyHtoD_v2((uintptr_t)text, text, 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree_v2(b));
    CHECK_INT(cuMemcpyDtoH_v2(text, b, 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAlloc_v2(&b, 3 * MIB));
    OK(cuMemcpyDtoH_v2(words, b, 16));
    CHECK_INT(words[0], 0); /* nobody sees what another left */
}

static void filling_a_gpu_costs_the_host_little(void) {
    CUdeviceptr pointer;
    char byte = 1;

    context_on(1);
    OK(cuMemAlloc_v2(&pointer, GPU1_BYTES - GPU1_CONTEXT));
    OK(cuMemsetD8_v2(pointer, 7, GPU1_BYTES - GPU1_CONTEXT));
    OK(cuMemcpyDtoH_v2(&byte, pointer, 1));
    CHECK_INT(byte, 7);
}

static void boxes(void) {
    CUarray array;
    CUdeviceptr device;
    size_t pitch_bytes;
    char host[16 * 16], back[16 * 16];

    context_on(0);
    for (int i = 0; i < 256; i++)
        host[i] = (char)i;
    OK(cuMemAllocPitch_v2(&device, &pitch_bytes, 16, 16, 4));
    OK(cuArrayCreate_v2(&array, &(CUDA_ARRAY_DESCRIPTOR){16, 16, CU_AD_FORMAT_UNSIGNED_INT8, 1}));
    OK(cuMemcpy2D_v2(&(CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_HOST,
                                      .srcHost = host,
                                      .srcPitch = 16,
                                      .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                      .dstDevice = device,
                                      .dstPitch = pitch_bytes,
                                      .WidthInBytes = 16,
                                      .Height = 16}));
    OK(cuMemcpy2D_v2(&(CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                      .srcDevice = device,
                                      .srcPitch = pitch_bytes,
                                      .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                                      .dstArray = array,
                                      .WidthInBytes = 16,
                                      .Height = 16}));
    memset(back, 0, sizeof(back));
    OK(cuMemcpy2D_v2(&(CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                                      .srcArray = array,
                                      .srcXInBytes = 4,
                                      .srcY = 8,
                                      .dstMemoryType = CU_MEMORYTYPE_HOST,
                                      .dstHost = back,
                                      .dstPitch = 16,
                                      .WidthInBytes = 8,
                                      .Height = 8}));
    CHECK_INT((unsigned char)back[0], 8 * 16 + 4);
    CHECK_INT((unsigned char)back[7 * 16 + 7], 15 * 16 + 11);
    CHECK_INT(back[8], 0);
    CHECK_INT(cuMemcpy2D_v2(&(CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                                             .srcArray = array,
                                             .srcXInBytes = 12,
                                             .dstMemoryType = CU_MEMORYTYPE_HOST,
                                             .dstHost = back,
                                             .WidthInBytes = 8,
                                             .Height = 1}),
              CUDA_ERROR_INVALID_VALUE);
    OK(cuArrayDestroy(array));
    CHECK_INT(cuArrayDestroy(array), CUDA_ERROR_INVALID_HANDLE);
    OK(cuMemFree_v2(device));
    CHECK_INT(taken(), 0);
}

static void arrays_take_memory(void) {
    CUDA_ARRAY3D_DESCRIPTOR texture = {1024, 1024, 0, CU_AD_FORMAT_FLOAT, 4, 0};
    CUmipmappedArray mipmap;
    CUarray array, level;

    context_on(0);
    OK(cuArray3DCreate_v2(&array, &texture));
    CHECK_INT(taken(), 16 * MIB);
    OK(cuArrayDestroy(array));
    texture.Format = CU_AD_FORMAT_BC1_UNORM;
    OK(cuArray3DCreate_v2(&array, &texture));
    CHECK_INT(taken(), 2 * MIB); /* half a byte for each texel */
    OK(cuArrayDestroy(array));
    texture = (CUDA_ARRAY3D_DESCRIPTOR){2048, 2048, 0, CU_AD_FORMAT_FLOAT, 1, 0};
    OK(cuMipmappedArrayCreate(&mipmap, &texture, 12));
    CHECK_INT(taken(), 22 * MIB); /* a third more than 16 */
    OK(cuMipmappedArrayGetLevel(&level, mipmap, 11));
    CHECK_INT(cuMipmappedArrayGetLevel(&level, mipmap, 12), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuArrayDestroy(level), CUDA_ERROR_INVALID_HANDLE);
    OK(cuMipmappedArrayDestroy(mipmap));
    CHECK_INT(taken(), 0);
    texture.NumChannels = 3;
    CHECK_INT(cuArray3DCreate_v2(&array, &texture), CUDA_ERROR_INVALID_VALUE);
    texture.NumChannels = 4;
    texture.Width = texture.Height = 16384;
    CHECK_INT(cuArray3DCreate_v2(&array, &texture), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_INT(taken(), 0);
}

static void pointers_tell_what_they_are(void) {
    CUcontext context = context_on(1), got;
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    CUdeviceptr small, big, managed, base;
    unsigned type, is_managed;
    void *host, *data[2];
    size_t size;
    int ordinal = -9;

    OK(cuMemAlloc_v2(&small, 1000));
    OK(cuMemAlloc_v2(&big, 5 * MIB));
    OK(cuMemAllocManaged(&managed, 100, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemHostAlloc(&host, 8192, 0));
    OK(cuMemGetAddressRange_v2(&base, &size, small + 999));
    CHECK_INT(base, small);
    CHECK_INT(size, 1000);
    CHECK_INT(cuMemGetAddressRange_v2(&base, &size, small + 1000), CUDA_ERROR_NOT_FOUND);
    OK(cuMemGetAddressRange_v2(&base, &size, big + 3 * MIB));
    CHECK_INT(base, big);
    CHECK_INT(size, 5 * MIB);
    OK(cuPointerGetAttribute(&got, CU_POINTER_ATTRIBUTE_CONTEXT, big + 5));
    CHECK(got == context);
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)host + 8000));
    CHECK_INT(type, CU_MEMORYTYPE_HOST);
    OK(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, managed));
    CHECK_INT(is_managed, 1);
    OK(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, small));
    CHECK_INT(is_managed, 0);
    CHECK_INT(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)&type),
              CUDA_ERROR_INVALID_VALUE);
    data[0] = &type;
    data[1] = &ordinal;
    OK(cuPointerGetAttributes(2, attributes, data, small));
    CHECK_INT(type, CU_MEMORYTYPE_DEVICE);
    CHECK_INT(ordinal, 1);
    OK(cuPointerGetAttributes(2, attributes, data, (uintptr_t)&type));
    CHECK_INT(type, 0);
    CHECK_INT(ordinal, CU_DEVICE_INVALID);
}

static void managed_memory_is_the_hosts_too(void) {
    CUdeviceptr small, big;

    context_on(0);
    OK(cuMemAllocManaged(&small, 100, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemAllocManaged(&big, 4 * MIB, CU_MEM_ATTACH_GLOBAL));
    CHECK_INT(taken(), 0); /* the GPU did not touch it yet */
    OK(cuMemsetD8_v2(small, 1, 100));
    OK(cuMemsetD8_v2(big, 1, 4 * MIB));
    CHECK_INT(taken(), 6 * MIB);
    strcpy((char *)(uintptr_t)small, "host");
    ((char *)(uintptr_t)big)[4 * MIB - 1] = 1;
    OK(cuMemFree_v2(small));
    OK(cuMemFree_v2(big));
    CHECK_INT(taken(), 0);
}

static void host_memory_is_not_the_gpus(void) {
    static char own[8192];
    CUdeviceptr device;
    unsigned flags;
    void *host;

    context_on(0);
    OK(cuMemHostAlloc(&host, 500 * MIB, CU_MEMHOSTALLOC_PORTABLE));
    OK(cuMemHostGetFlags(&flags, host));
    CHECK((flags & CU_MEMHOSTALLOC_PORTABLE) != 0);
    OK(cuMemHostGetDevicePointer_v2(&device, host, 0));
    CHECK_INT(device, (uintptr_t)host);
    OK(cuMemHostRegister_v2(own, sizeof(own), 0));
    CHECK_INT(cuMemHostRegister_v2(own + 4096, 100, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    CHECK_INT(taken(), 0);
    OK(cuMemHostUnregister(own));
    CHECK_INT(cuMemHostUnregister(own), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    OK(cuMemFreeHost(host));
}

#define THREADS 8

static void *churn(void *context) {
    CUdeviceptr pointers[50] = {0};
    unsigned seed = (unsigned)(uintptr_t)&pointers;

    OK(cuCtxSetCurrent(context));
    for (int i = 0; i < 5000; i++) {
        CUdeviceptr *p = &pointers[rand_r(&seed) % 50];

        OK(cuMemFree_v2(*p));
        *p = 0;
        OK(cuMemAlloc_v2(p, (size_t)(rand_r(&seed) % (i % 10 == 0 ? 3 * (int)MIB : 9000) + 1)));
    }
    for (int i = 0; i < 50; i++)
        OK(cuMemFree_v2(pointers[i]));
    return NULL;
}

static void threads_at_once(void) {
    CUcontext context = context_on(1);
    pthread_t threads[THREADS];

    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, churn, context);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CHECK_INT(look("test").used[1], GPU1_CONTEXT);
    CHECK_INT(look("test").sum[1].allocations, 0);
}

const struct test memory_tests[] = {
    {"sizes are rounded up to 2 MiB", sizes_are_rounded_up_to_2_mib},
    {"small allocations are packed", small_allocations_are_packed},
    {"big and small do not share a block", big_and_small_do_not_share_a_block},
    {"holes are used again", holes_are_used_again},
    {"contexts do not share blocks", contexts_do_not_share_blocks},
    {"bad frees are refused", bad_frees_are_refused},
    {"bad allocations are refused", bad_allocations_are_refused},
    {"pitch", pitch},
    {"cuMemGetInfo tells of the whole GPU", mem_get_info_tells_of_the_whole_gpu},
    {"old pointers have 32 bits", old_pointers_have_32_bits},
    {"old copies have 32 bits", old_copies_have_32_bits},
    {"contents are kept", contents_are_kept},
    {"filling a GPU costs the host little", filling_a_gpu_costs_the_host_little},
    {"boxes", boxes},
    {"arrays take memory", arrays_take_memory},
    {"pointers tell what they are", pointers_tell_what_they_are},
    {"managed memory is the host's too", managed_memory_is_the_hosts_too},
    {"host memory is not the GPU's", host_memory_is_not_the_gpus},
    {"threads at once", threads_at_once},
    {0},
};
