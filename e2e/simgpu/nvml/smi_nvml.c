/* Loading NVML, by its name and through the loader. */
#include "smi_nvml.h"

#include <dlfcn.h>
#include <string.h>

static int fail(FILE *out, const char *reason, int code) {
    fprintf(out, "SIMULATED nvidia-smi: cannot communicate with the driver: %s\n", reason);
    return code;
}

int nvml_open(struct nvml *nvml, FILE *out) {
    nvml->library = dlopen(NVML_SONAME, RTLD_NOW | RTLD_LOCAL);
    if (nvml->library == NULL)
        return fail(out, dlerror(), NVML_ERROR_LIBRARY_NOT_FOUND);
        /* POSIX gives function pointers through void pointers; ISO C has no other way than to copy the bytes. */
#define LOOK_UP(name)                                                                                                  \
    {                                                                                                                  \
        void *symbol = dlsym(nvml->library, #name);                                                                    \
        if (symbol == NULL) {                                                                                          \
            dlclose(nvml->library);                                                                                    \
            return fail(out, NVML_SONAME " has no " #name, NVML_ERROR_FUNCTION_NOT_FOUND);                             \
        }                                                                                                              \
        memcpy(&nvml->name, &symbol, sizeof(symbol));                                                                  \
    }
    NVML_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
    nvmlReturn_t ret = nvml->nvmlInit_v2();
    if (ret != NVML_SUCCESS) {
        fail(out, nvml->nvmlErrorString(ret), ret);
        dlclose(nvml->library);
    }
    return ret;
}

void nvml_close(struct nvml *nvml) {
    nvml->nvmlShutdown();
    dlclose(nvml->library);
}
