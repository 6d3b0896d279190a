# Calls each function of pynvml that takes a device and nothing else, and prints what it returns. A result that is about the
# machine's state at the moment is named only.
import pynvml

CHANGES = ("Utilization", "PowerUsage", "Temperature", "ClockInfo", "RowRemapperHistogram")

pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
print(pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlDeviceGetCount())
for name in sorted(dir(pynvml)):
    # Memory is what the claim changes; what returns a handle takes something else than one.
    if not name.startswith("nvmlDeviceGet") or "MemoryInfo" in name or "Handle" in name:
        continue
    try:
        result = getattr(pynvml, name)(device)
        print(name, "..." if any(part in name for part in CHANGES) else result)
    except TypeError:  # takes more arguments
        pass
    except pynvml.NVMLError as error:
        print(name, error)
