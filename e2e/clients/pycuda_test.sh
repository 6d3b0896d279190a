#!/bin/bash
# Debian's pycuda on the simulated GPU, bare, under a claim and in turns: its own tests, for which it compiles kernels with NVIDIA's
# nvcc.
#
#   pycuda_test.sh BUILD    (run from the repository's root, as root; $CC compiles)
set -u -o pipefail

build=$1
root=$build/clients/pycuda
toolkit=$build/nvidia/cuda-11.8
# What python3-pycuda depends on, but for the gigabytes of libraries that only nvcc's packages want.
scripts/debian-root "$root" bookworm python3-numpy python3-pytest python3-pytools python3-appdirs python3-decorator \
    python3-mako libboost-python1.74.0 libboost-thread1.74.0 g++-11 dash coreutils &&
    scripts/nvidia-packages "$root" bookworm python3-pycuda python-pycuda-doc libcurand10 &&
    scripts/nvcc-packages "$toolkit" bookworm || exit 1
[ -e "$root/usr/bin/nvcc" ] || cp -al "$toolkit/usr" "$toolkit/etc" "$root/" || exit 1
. e2e/clients/node.sh
cp e2e/clients/python/pycuda_*.py "$node/"

# The cache is shared, so that each kernel is compiled once.
tests=(NVCC_PREPEND_FLAGS="-ccbin g++-11" XDG_CACHE_HOME=/gpu/cache python3 -B /gpu/pycuda_tests.py)
run bare tests "${tests[@]}"
run shadow tests "${tests[@]}"
check "tests: what they say" "" "$(cmp "$node/bare-tests.out" "$node/shadow-tests.out" 2>&1)"
check "tests: kernels" "$(record bare-tests launches)" "$(record shadow-tests launches)"
check "tests: nothing stays" 0 "$(record shadow-tests bytes)"
# Some allocate by what is free, so only a claim of the same size holds as much.
run_in_turns tests "${tests[@]}"
check "tests: all run" 33 "$(wc -l <"$node/shadow-tests.out")"
# The simulated GPU runs no kernel that could compute what they expect.
check "tests: those that fail get a wrong result, and no error of CUDA's" "" \
    "$(grep failed "$node/shadow-tests.out" | grep -v ': AssertionError$')"
for test in test_memory test_mempool test_mempool_2 test_multi_context test_additional_primary_context \
    test_register_host_memory test_constant_memory test_jit_link_module test_recursive_launch test_pointer_holder_base; do
    check "tests: $test" "$test passed" "$(grep "^$test " "$node/shadow-tests.out")"
done
check_at_most "tests: at no moment more" $((limit * mib)) "$(record shadow-tests peak_bytes)"

refused='then cuMemAlloc failed: out of memory'
check "pycuda at the end of the GPU" "960 of 1024 MiB free
60 allocations, $refused
60 allocations, $refused" "$(in_root bare bare-limit python3 -B /gpu/pycuda_limit.py 2>&1)"
check "pycuda at the limit" "448 of 512 MiB free
28 allocations, $refused
28 allocations, $refused" "$(in_root shadow shadow-limit python3 -B /gpu/pycuda_limit.py 2>&1)"
check "pycuda at the limit, by the record" $((limit * mib)) "$(record shadow-limit peak_bytes)"
check "pycuda at the limit: nothing stays" 0 "$(record shadow-limit bytes)"

finish
