"""No NCCL, as in PyTorch for systems without it."""


def is_nccl_available():
    return False
