# What numba does with memory: arrays in streams, pinned, managed and mapped, and a kernel that NVVM compiles.
import numpy
from numba import cuda

MIB = 1 << 20


def check(what, good):
    print(what, "ok" if good else "WRONG")


context = cuda.current_context()
host = numpy.arange(MIB, dtype=numpy.float32)

device = cuda.to_device(host)
check("array", (device.copy_to_host() == host).all())
check("part of an array", (device[1000:2000].copy_to_host() == host[1000:2000]).all())

stream = cuda.stream()
pinned = cuda.pinned_array(MIB, dtype=numpy.float32)
pinned[:] = host
there = cuda.to_device(pinned, stream=stream)
back = cuda.pinned_array(MIB, dtype=numpy.float32)
there.copy_to_host(back, stream=stream)
stream.synchronize()
check("pinned, in a stream", (back == host).all())

managed = cuda.managed_array(MIB, dtype=numpy.float32)
managed[:] = host
check("managed", (managed == host).all())
mapped = cuda.mapped_array(MIB, dtype=numpy.float32)
mapped[:] = host
check("mapped", (mapped == host).all())

event = cuda.event()
event.record(stream)
event.synchronize()
check("event", event.query())


@cuda.jit
def increment(array):
    i = cuda.grid(1)
    if i < array.size:
        array[i] += 1


for _ in range(10):
    increment[MIB // 256, 256](device)
    cuda.synchronize()
check("kernels", True)
