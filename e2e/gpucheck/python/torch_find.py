"""Says whether this Python has a PyTorch that sees a GPU: {"version": ..., "libraries": ...} or {"why": ...}.

The libraries are the directories of CUDA's libraries that were installed with it.
"""

import glob
import json
import os


def find():
    try:
        import torch
    except ImportError as error:
        return {"why": f"this Python has no PyTorch ({error})"}
    if not torch.cuda.is_available():
        return {"why": f"PyTorch {torch.__version__} sees no GPU"}
    packages = os.path.dirname(os.path.dirname(torch.__file__))
    libraries = sorted(glob.glob(os.path.join(packages, "nvidia", "*", "lib")))
    return {"version": str(torch.__version__), "libraries": libraries}


if __name__ == "__main__":
    print(json.dumps(find()))
