#!/bin/bash
# Tests that the library of compute shares alone leaves memory to the driver, in front of the simulated GPU: by the
# simulator's record, and by the claim's region, which stays as it was.
#
#   compute_test.sh BUILD    (run from the repository's root; $CC compiles)
set -u -o pipefail

build=$1
tests=intercept/tests
cc=${CC:-gcc}
mib=$((1024 * 1024))
limit=512
gpu=GPU-7e570000-0000-4000-8000-000000000000
. intercept/tests/checks.sh

work=$(mktemp -d "${TMPDIR:-/tmp}/tranche-compute-XXXXXX")
trap 'rm -rf "$work"' EXIT

compile() {
    "$cc" -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 -g "$@" || { echo "cannot compile: $*" >&2 && exit 1; }
}

mkdir -p "$work/dev" "$work/lib/.tranche" "$work/claim"
touch "$work/dev/nvidiactl" "$work/dev/nvidia0" "$work/dev/nvidia-uvm"
cp "$build/lib/compute/libcuda.so.1" "$work/lib/"
cp "$build/sim/lib/libcuda.so.1" "$work/lib/.tranche/driver-libcuda.so"
compile -Iintercept -DTRANCHE_GOVERNED -DTRANCHE_COMPUTE_ONLY -o "$work/probe" $tests/loader_probe.c -ldl
compile -o "$work/make_claim" $tests/make_claim.c $tests/fixture.c
"$work/make_claim" "$work/claim" 0000000a $gpu $limit 64
cp -r "$work/claim" "$work/before"

export SIMGPU_TOPOLOGY=$PWD/e2e/simgpu/topologies/small.conf SIMGPU_STATE=$work/state SIMGPU_DEV=$work/dev
export LD_LIBRARY_PATH=$work/lib TRANCHE_REGIONS=$work/claim

# A program that gets more than the limit, by each way to find the driver's functions.
for lookup in dlsym address address-v2 every-address; do
    "$build/sim/bin/simgpu" init || exit 1
    check "$lookup: gets what the driver gives" past "$("$work/probe" lazy $lookup libcuda.so.1 2>"$work/said")"
    check "$lookup: gives no launch past the library" "" "$(grep "the driver's own" "$work/said")"
    [ $lookup = every-address ] || check "$lookup: says nothing" "" "$(grep tranche: "$work/said")"
    check "$lookup: held, by the record" $(((limit + 88 + 64) * mib)) \
        "$("$build/sim/bin/simgpu" record --json | grep -oE '"peak_bytes" *: *[0-9]+' | grep -oE '[0-9]+$' | sort -n | tail -1)"
done
check "the region is as it was" "" "$(diff -r "$work/before" "$work/claim")"

check "without a claim: the driver's answer" past \
    "$(TRANCHE_REGIONS=$work/none "$work/probe" lazy dlsym libcuda.so.1 2>"$work/said")"
check "without a claim: says so once" 1 "$(grep -c 'tranche: this process does not compute in turns' "$work/said")"

echo "compute: $passed passed, $failed failed"
exit $((failed > 0))
