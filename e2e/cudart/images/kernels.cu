/* Kernels and variables of every kind that a module's image has, for NVIDIA's nvcc. */
__device__ float plain[1 << 20];             /* 4 MiB */
__device__ int initialised[1024] = {1, 2, 3}; /* its contents are in the image */
__constant__ char constant[4096];
__managed__ double managed[1 << 17]; /* 1 MiB */

template <int N> __device__ float unrolled(float value) {
#pragma unroll
    for (int i = 0; i < N; i++)
        value = value * plain[(i * 7919) % (1 << 20)] + constant[i % 4096];
    return value;
}

extern "C" __global__ void small(int *out) {
    *out = initialised[threadIdx.x] + (int)managed[threadIdx.x];
}

/* Much code, in which much repeats itself. */
extern "C" __global__ void large(float *out, float value, int times) {
    __shared__ float shared[256];
    shared[threadIdx.x] = unrolled<300>(value);
    __syncthreads();
    for (int i = 0; i < times; i++)
        *out += shared[(threadIdx.x + i) % 256];
}
