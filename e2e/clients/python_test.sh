#!/bin/bash
# Debian's Python clients on the simulated GPU, bare and under a claim: numba, pynvml, gpustat.
#
#   python_test.sh BUILD    (run from the repository's root, as root; $CC compiles)
set -u -o pipefail

build=$1
root=$build/clients/python
scripts/debian-root "$root" bookworm python3-numba python3-pynvml gpustat &&
    scripts/nvidia-packages "$root" bookworm libnvvm4 nvidia-cuda-toolkit || exit 1
# The package with this link has gigabytes of static libraries beside it.
ln -sf libnvvm.so.4 "$root/usr/lib/x86_64-linux-gnu/libnvvm.so"
. e2e/clients/node.sh
cp e2e/clients/python/*.py "$node/"

# --- numba ---

# It would ask NVIDIA's runtime library for its version, which works only with NVIDIA's own driver, to find out for which
# architectures it may compile.
numba=(NUMBA_FORCE_CUDA_CC=9.0 python3 -B -W ignore)
run_each arrays "${numba[@]}" /gpu/numba_arrays.py
check "numba: all is as it was copied" "7 0" "$(grep -c ' ok$' "$node/shadow-arrays.out") $(grep -c WRONG "$node/shadow-arrays.out")"
check "numba: kernels" 10 "$(record shadow-arrays launches)"

refused='then [2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY'
check "numba at the end of the GPU" "960 of 1024 MiB free
60 arrays, $refused
60 arrays, $refused" "$(in_root bare bare-limit "${numba[@]}" /gpu/numba_limit.py 2>&1)"
check "numba at the limit" "448 of 512 MiB free
28 arrays, $refused
28 arrays, $refused" "$(in_root shadow shadow-limit "${numba[@]}" /gpu/numba_limit.py 2>&1)"
check "numba at the limit, by the record" $((limit * mib)) "$(record shadow-limit peak_bytes)"
check "numba at the limit: nothing stays" 0 "$(record shadow-limit bytes)"

# --- pynvml and gpustat ---

for driver in bare shadow; do
    in_root $driver nvml python3 -B /gpu/pynvml_all.py >"$node/$driver-nvml.out" 2>"$node/said"
    check "pynvml, $driver: ends" "0 " "$? $(cat "$node/said")"
done
check "pynvml: more than fifty functions" 1 "$(($(wc -l <"$node/bare-nvml.out") > 50))"
check "pynvml: what all functions say" "$(cat "$node/bare-nvml.out")" "$(cat "$node/shadow-nvml.out")"

memory='import pynvml as n; n.nvmlInit(); m = n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(0));
print(m.total >> 20, m.used >> 20, m.free >> 20)'
gpustat() { # DRIVER
    in_root "$1" gpustat gpustat --no-color --no-header 2>&1 | sed 's/.*| *\([0-9]* *\/ *[0-9]* MB\).*/\1/; s/  */ /g'
}
check "pynvml: the whole GPU" "1024 0 1024" "$(in_root bare nvml python3 -B -c "$memory" 2>&1)"
check "pynvml: the limit" "512 0 512" "$(in_root shadow nvml python3 -B -c "$memory" 2>&1)"
check "gpustat: the whole GPU" "0 / 1024 MB" "$(gpustat bare)"
check "gpustat: the limit" "0 / 512 MB" "$(gpustat shadow)"

# Beside a process of the claim.
mkfifo "$node/ready" "$node/end"
in_root shadow holder "${numba[@]}" -c "
from numba import cuda
array = cuda.device_array(100 << 20, dtype='u1')
open('/gpu/ready', 'w').close()
open('/gpu/end').close()" &
holder=$!
: <"$node/ready"
check "pynvml: beside a process that holds memory" "512 164 348" "$(in_root shadow nvml python3 -B -c "$memory" 2>&1)"
check "gpustat: beside a process that holds memory" "164 / 512 MB" "$(gpustat shadow)"
: >"$node/end"
wait $holder
check "the process that holds memory ends" 0 $?
check "pynvml: after it" "512 0 512" "$(in_root shadow nvml python3 -B -c "$memory" 2>&1)"

finish
