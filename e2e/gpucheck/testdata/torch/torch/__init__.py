"""A stand-in for PyTorch, for the test of the checks' own Python: a few of its functions, on the CUDA driver by ctypes.

It allocates as PyTorch does under each of its allocators, so that what the checks see is the driver's answer. It is no
PyTorch: what they find here says nothing about PyTorch.
"""

import ctypes
import math
import os
import types

from . import cuda, distributed, nn, optim  # noqa: F401
from .driver import OutOfMemoryError, Memory, driver, check

__version__ = "0.0.0+stand-in"
float32 = "float32"
long = "long"
configuration = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")


class Tensor:
    """So many equal numbers of four bytes on the GPU."""

    def __init__(self, count, value):
        self.memory = Memory(count * 4, configuration)
        self.count = count
        self.fill(value)

    def fill(self, value):
        """The first and the last: the simulated GPU keeps no large contents."""
        bits = ctypes.c_uint.from_buffer_copy(ctypes.c_float(value))
        for index in (0, self.count - 1):
            at = ctypes.c_ulonglong(self.memory.address.value + 4 * index)
            check(driver.cuMemsetD32_v2(at, bits, ctypes.c_size_t(1)))

    def __getitem__(self, index):
        number = ctypes.c_float()
        at = ctypes.c_ulonglong(self.memory.address.value + 4 * (index % self.count))
        check(driver.cuMemcpyDtoH_v2(ctypes.byref(number), at, ctypes.c_size_t(4)))
        return number.value

    def abs(self):
        return self

    def max(self):
        return self[0]

    def add_(self, number):
        self.fill(self[0] + number)
        return self

    def sub_(self, number):
        return self.add_(-number)


def full(shape, value, dtype=None, device=None):
    assert device == "cuda"
    return Tensor(shape[0], value)


def zeros(count, dtype=None, device=None):
    return full((count,), 0.0, device=device)


def ones(*shape, device=None):
    return full((math.prod(shape),), 1.0, device=device)


def mm(left, right):
    return full((left.count,), math.isqrt(left.count), device="cuda")


def randn(rows, columns, device=None):
    return full((rows * columns,), 0.5, device=device)


def manual_seed(seed):
    pass


fft = types.SimpleNamespace(fft=lambda values: full((values.count,), float(values.count), device="cuda"))
backends = types.SimpleNamespace(cudnn=types.SimpleNamespace(is_available=lambda: True))
nn.functional.conv2d = lambda image, filters: full((image.count,), filters.count / 16, device="cuda")
