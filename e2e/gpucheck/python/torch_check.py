"""A PyTorch program that meets its limit and goes on.

    torch_check.py LIMIT_BYTES

It prints a JSON object a line and waits for a line after each, so that whoever runs it can measure meanwhile.
"""

import json
import sys

import torch

MIB = 1 << 20
# Small enough that little of the limit stays unused, large enough that PyTorch asks the driver for each by itself.
TENSOR_BYTES = 128 * MIB


def step(name, **members):
    """Says where the program is, and waits."""
    print(json.dumps({"step": name, **members}), flush=True)
    if not sys.stdin.readline():
        sys.exit(3)


def tensor(number):
    return torch.full((TENSOR_BYTES // 4,), float(number), dtype=torch.float32, device="cuda")


def fill(cap_bytes):
    """Takes tensors until there is an error; never more than the cap, should the limit not hold."""
    tensors = []
    try:
        while len(tensors) * TENSOR_BYTES < cap_bytes:
            tensors.append(tensor(len(tensors)))
            torch.cuda.synchronize()
    except Exception as error:  # whatever it is, it goes into the report
        return tensors, type(error).__name__, str(error)
    return tensors, "", ""


def wrong(tensors):
    """What is wrong with the tensors' contents, if anything is."""
    for number, values in enumerate(tensors):
        if float(values[0]) != number or float(values[-1]) != number:
            return f"tensor {number} has lost its contents"
    return ""


def attempt(action):
    """The message of the error that an action ends with, or what it returns: what is wrong, or nothing."""
    try:
        return action() or ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def main():
    limit = int(sys.argv[1])
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    properties = torch.cuda.get_device_properties(0)
    step("begun", free=free, total=total, device_total=properties.total_memory)

    tensors, kind, message = fill(limit + limit // 8)
    step("full", taken=len(tensors) * TENSOR_BYTES, type=kind, message=message)

    def compute():
        if tensors:
            tensors[0].add_(1).sub_(1)
            torch.cuda.synchronize()
        return wrong(tensors)

    step("computed", message=attempt(compute))

    count = len(tensors)
    del tensors
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    step("freed", free=free, total=total)

    def again():
        second = [tensor(number) for number in range(count)]
        torch.cuda.synchronize()
        return wrong(second)

    step("again", message=attempt(again))
    step("end")


if __name__ == "__main__":
    main()
