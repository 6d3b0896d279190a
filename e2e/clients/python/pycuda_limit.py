"""Allocates with pycuda until it is refused, twice."""

import pycuda.autoinit
import pycuda.driver as cuda

free, total = cuda.mem_get_info()
print(free >> 20, "of", total >> 20, "MiB free")
for _ in range(2):
    held = []
    try:
        while True:
            held.append(cuda.mem_alloc(16 << 20))
    except cuda.MemoryError as error:
        print(len(held), "allocations, then", error)
    for allocation in held:
        allocation.free()
