"""The driver, and memory taken from it in one of PyTorch's ways."""

import ctypes

OUT_OF_MEMORY = 2


class OutOfMemoryError(RuntimeError):
    pass


driver = ctypes.CDLL("libcuda.so.1")
device = ctypes.c_int()
context = ctypes.c_void_p()


def check(result):
    if result == OUT_OF_MEMORY:
        raise OutOfMemoryError("CUDA out of memory (a stand-in for PyTorch says so)")
    if result != 0:
        raise RuntimeError(f"CUDA error {result}")


def start():
    check(driver.cuInit(0))
    check(driver.cuDeviceGet(ctypes.byref(device), 0))
    check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    check(driver.cuCtxSetCurrent(context))


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class AllocationProperties(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


class Memory:
    def __init__(self, size, configuration):
        if not context:
            start()
        self.size = ctypes.c_size_t(size)
        self.address = ctypes.c_ulonglong()
        self.handle = ctypes.c_ulonglong()
        self.way = "linear"
        if "expandable_segments:True" in configuration and size >= 2 << 20:
            self.map()
        elif "cudaMallocAsync" in configuration:
            check(driver.cuMemAllocAsync(ctypes.byref(self.address), self.size, None))
            self.way = "async"
        else:
            check(driver.cuMemAlloc_v2(ctypes.byref(self.address), self.size))

    def map(self):
        properties = AllocationProperties(type=1, location=Location(1, device.value))
        access = Access(Location(1, device.value), 3)
        nothing = ctypes.c_ulonglong(0)
        check(driver.cuMemCreate(ctypes.byref(self.handle), self.size, ctypes.byref(properties), nothing))
        self.way = "mapped"
        check(driver.cuMemAddressReserve(ctypes.byref(self.address), self.size, ctypes.c_size_t(0), nothing, nothing))
        check(driver.cuMemMap(self.address, self.size, ctypes.c_size_t(0), self.handle, nothing))
        check(driver.cuMemSetAccess(self.address, self.size, ctypes.byref(access), ctypes.c_size_t(1)))

    def __del__(self):
        if self.way == "mapped":
            driver.cuMemUnmap(self.address, self.size)
            driver.cuMemAddressFree(self.address, self.size)
            driver.cuMemRelease(self.handle)
        elif self.address.value and self.way == "async":
            driver.cuMemFreeAsync(self.address, None)
        elif self.address.value:
            driver.cuMemFree_v2(self.address)
