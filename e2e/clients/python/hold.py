"""Holds memory of the GPU, by the driver alone, until /gpu/end is opened: hold.py MIB."""

import ctypes
import sys

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    if result != 0:
        sys.exit(f"{name}: {result}")


call("cuInit", 0)
context = ctypes.c_void_p()
call("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
memory = ctypes.c_uint64()
call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(int(sys.argv[1]) << 20))
with open("/gpu/ready", "w"):
    pass
with open("/gpu/end"):
    pass
