# A simulated node for clients that nobody here wrote: sourced by the *_test.sh beside it, from the repository's root, with
# $build. The client sees one GPU of 1 GiB, as in a container, and has a claim of 512 MiB on it. Each client runs in a root file system of Debian's packages
# ($root), once in front of the simulated driver and once with the shadow libraries before it.

. intercept/tests/checks.sh

mib=$((1024 * 1024))
limit=512
gpu=GPU-7e570000-0000-4000-8000-000000000000
build=$(cd "$build" && pwd)
node=$(mktemp -d "${TMPDIR:-/tmp}/tranche-clients-XXXXXX")
trap 'rm -rf "$node"' EXIT

mkdir -p "$node/dev" "$node/bare" "$node/shadow/.tranche" "$node/claim"
touch "$node/dev/nvidiactl" "$node/dev/nvidia0" "$node/dev/nvidia-uvm"
cp e2e/simgpu/topologies/small.conf "$node/topology"
for library in libcuda.so.1 libnvidia-ml.so.1; do
    cp "$build/sim/lib/$library" "$node/bare/"
    cp "$build/lib/$library" "$node/shadow/"
    cp "$build/sim/lib/$library" "$node/shadow/.tranche/driver-${library%.1}"
done
${CC:-gcc} -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 -o "$node/make_claim" intercept/tests/make_claim.c \
    intercept/tests/fixture.c
"$node/make_claim" "$node/claim" 0000000a $gpu $limit 64

simgpu() {
    SIMGPU_TOPOLOGY=$node/topology SIMGPU_STATE=$node/state SIMGPU_DEV=$node/dev "$build/sim/bin/simgpu" "$@"
}

in_root() { # DRIVER LABEL [NAME=VALUE]... COMMAND...: recorded under LABEL; DRIVER is bare or shadow
    e2e/clients/in_root "$root" "$node" SIMGPU_TOPOLOGY=/gpu/topology SIMGPU_STATE=/gpu/state SIMGPU_DEV=/gpu/dev \
        TRANCHE_REGIONS=/gpu/claim LD_LIBRARY_PATH="/gpu/$1" XDG_CACHE_HOME="/gpu/cache-$1" SIMGPU_LABEL="$2" "${@:3}"
}

record() { # LABEL FIELD: from the record
    simgpu record --json | tr -d ' \n' | grep -o "{\"group\":\"$1\",\"gpu_uuid\":\"$gpu\"[^}]*}" |
        sed -n "s/.*\"$2\":\([0-9]*\).*/\1/p"
}

# What every client is judged by: it did with the shadow what it did without, and nothing stays.
check_same() { # WHAT: after runs labelled bare-WHAT and shadow-WHAT, whose output is in $node
    check "$1: what it says" "" "$(cmp "$node/bare-$1.out" "$node/shadow-$1.out" 2>&1)"
    check "$1: kernels" "$(record "bare-$1" launches)" "$(record "shadow-$1" launches)"
    check "$1: the most that it held" "$(record "bare-$1" peak_bytes)" "$(record "shadow-$1" peak_bytes)"
    check "$1: nothing stays" 0 "$(record "shadow-$1" bytes)"
}

run_both() { # WHAT [NAME=VALUE]... COMMAND...
    local driver

    for driver in bare shadow; do
        in_root $driver "$driver-$1" "${@:2}" >"$node/$driver-$1.out" 2>"$node/$driver-$1.err"
        check "$1, $driver: ends" "0 " "$? $(cat "$node/$driver-$1.err")"
    done
    check_same "$1"
}

finish() {
    echo "$passed passed, $failed failed"
    exit $((failed > 0))
}

simgpu init || exit 1
