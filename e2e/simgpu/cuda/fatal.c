/* What ends a process's work on GPUs for good: an exception of one of its kernels, or what becomes of its MPS server. */
#include "driver.h"
#include "mps_client.h"

CUresult driver_error(void) {
    int fatal = atomic_load(&driver->fatal);

    return fatal != 0 ? (CUresult)fatal : mps_client_error();
}

CUresult gpu_error(int gpu) {
    return sim_gpu_lost(gpu) ? CUDA_ERROR_DEVICE_UNAVAILABLE : driver_error();
}

/* Xid 31 is a page fault, 13 any other exception. */
static void end_with(CUdevice device, CUresult result) {
    sim_fault_xid(driver->gpus[device], result == CUDA_ERROR_ILLEGAL_ADDRESS ? 31 : 13);
    if (mps_client())
        mps_client_fatal(device, result);
    else
        atomic_store(&driver->fatal, (int)result);
}

void kernel_launched(CUdevice device) {
    int fault = sim_fault_kernel_take(driver->gpus[device]);

    sim_count_launch(driver->gpus[device]);
    if (fault != 0)
        end_with(device, (CUresult)fault);
}
