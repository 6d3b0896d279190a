/* What the shadow library needs of NVML. */
#ifndef TRANCHE_NVML_API_H
#define TRANCHE_NVML_API_H

typedef enum nvmlReturn_t {
    NVML_SUCCESS = 0,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
    NVML_ERROR_OPERATING_SYSTEM = 17, /* "blocked by the operating system" */
} nvmlReturn_t;

typedef struct nvmlDevice_st *nvmlDevice_t;

typedef struct nvmlMemory_t {
    unsigned long long total; /* bytes, as all of these */
    unsigned long long free;
    unsigned long long used;
} nvmlMemory_t;

typedef struct nvmlMemory_v2_t {
    unsigned int version;
    unsigned long long total;
    unsigned long long reserved;
    unsigned long long free;
    unsigned long long used;
} nvmlMemory_v2_t;

#define NVML_DEVICE_UUID_V2_BUFFER_SIZE 96

#endif
