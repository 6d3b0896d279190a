"""Uses the libraries that PyTorch brings, one after the other, under a limit.

It prints a JSON object a line and waits for a line after each, so that whoever runs it can measure meanwhile.
"""

import json
import sys
import tempfile

import torch
import torch.distributed

SIDE = 1024
COUNT = 1 << 20


def step(name, **members):
    """Says where the program is, and waits."""
    print(json.dumps({"step": name, **members}), flush=True)
    if not sys.stdin.readline():
        sys.exit(3)


def cublas():
    ones = torch.ones(SIDE, SIDE, device="cuda")
    return torch.mm(ones, ones), SIDE


def cufft():
    return torch.fft.fft(torch.ones(COUNT, device="cuda")).abs(), COUNT


def cudnn():
    if not torch.backends.cudnn.is_available():
        return None, "this PyTorch has no cuDNN"
    image, filters = torch.ones(1, 16, 64, 64, device="cuda"), torch.ones(16, 16, 3, 3, device="cuda")
    return torch.nn.functional.conv2d(image, filters), 16 * 3 * 3


def nccl():
    if not torch.distributed.is_nccl_available():
        return None, "this PyTorch has no NCCL"
    with tempfile.TemporaryDirectory() as directory:
        torch.distributed.init_process_group("nccl", init_method=f"file://{directory}/store", rank=0, world_size=1)
        ones = torch.ones(COUNT, device="cuda")
        torch.distributed.all_reduce(ones)
        torch.cuda.synchronize()
    return ones, 1


def use(name, library):
    try:
        values, expected = library()
        if values is None:
            step("impossible", why=expected)
            return
        largest = float(values.max())
        step(name, message="" if largest == expected else f"it computed {largest} where {expected} is right")
    except Exception as error:  # whatever it is, it goes into the report
        step(name, message=f"{type(error).__name__}: {error}")


def main():
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    step("begun")
    for name, library in ("cuBLAS", cublas), ("cuFFT", cufft), ("cuDNN", cudnn), ("NCCL", nccl):
        use(name, library)


if __name__ == "__main__":
    main()
