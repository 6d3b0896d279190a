# Allocates with numba until it is out of memory, frees, and allocates as much again.
import numpy
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError

MIB = 1 << 20


def fill():
    arrays = []
    try:
        while True:
            arrays.append(cuda.device_array(16 * MIB, dtype=numpy.uint8))
    except CudaAPIError as error:
        print(f"{len(arrays)} arrays, then {error}")


info = cuda.current_context().get_memory_info()
print(f"{info.free // MIB} of {info.total // MIB} MiB free")
fill()
fill()
