"""Says whether this Python has a PyTorch that sees a GPU: {"version": ...} or {"why": ...}."""

import json


def find():
    try:
        import torch
    except ImportError as error:
        return {"why": f"this Python has no PyTorch ({error})"}
    if not torch.cuda.is_available():
        return {"why": f"PyTorch {torch.__version__} sees no GPU"}
    return {"version": str(torch.__version__)}


if __name__ == "__main__":
    print(json.dumps(find()))
