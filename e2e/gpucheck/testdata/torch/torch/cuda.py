import ctypes

from .driver import OutOfMemoryError, check, context, device, driver, start  # noqa: F401


class Properties:
    def __init__(self, total_memory):
        self.total_memory = total_memory


def is_available():
    count = ctypes.c_int()
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def synchronize():
    check(driver.cuCtxSynchronize())


def empty_cache():
    pool = ctypes.c_void_p()
    try:
        check(driver.cuDeviceGetDefaultMemPool(ctypes.byref(pool), device))
        check(driver.cuMemPoolTrimTo(pool, ctypes.c_size_t(0)))
    except AttributeError:
        pass  # a driver without pools


def mem_get_info():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    check(driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    return free.value, total.value


def get_device_properties(index):
    total = ctypes.c_size_t()
    check(driver.cuDeviceTotalMem_v2(ctypes.byref(total), index))
    return Properties(total.value)
