# A simulated node for clients that nobody here wrote: sourced by the *_test.sh beside it, from the repository's root, with
# $build. The client sees one GPU of 1 GiB, as in a container, and has a claim of 512 MiB on it. Each client runs in a root file system of Debian's packages
# ($root): in front of the simulated driver, with the shadow libraries before it, and in turns with a neighbour.

. intercept/tests/checks.sh

mib=$((1024 * 1024))
limit=512
gpu=GPU-7e570000-0000-4000-8000-000000000000
build=$(cd "$build" && pwd)
node=$(mktemp -d "${TMPDIR:-/tmp}/tranche-clients-XXXXXX")
trap 'rm -rf "$node"' EXIT

mkdir -p "$node/dev" "$node/bare" "$node/shadow/.tranche" "$node/claim" "$node/tranche"
touch "$node/dev/nvidiactl" "$node/dev/nvidia0" "$node/dev/nvidia-uvm"
cp e2e/simgpu/topologies/small.conf "$node/topology"
for library in libcuda.so.1 libnvidia-ml.so.1; do
    cp "$build/sim/lib/$library" "$node/bare/"
    cp "$build/lib/$library" "$node/shadow/"
    cp "$build/sim/lib/$library" "$node/shadow/.tranche/driver-${library%.1}"
done
${CC:-gcc} -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 -o "$node/make_claim" intercept/tests/make_claim.c \
    intercept/tests/fixture.c
cp -r "$node/shadow" "$node/governed"
cp "$build/lib/governed/libcuda.so.1" "$node/governed/"
"$node/make_claim" "$node/claim" 0000000a $gpu $limit 64

simulated=(env SIMGPU_TOPOLOGY="$node/topology" SIMGPU_STATE="$node/state" SIMGPU_DEV="$node/dev")
place=(--run-dir "$node/run" --state-dir "$node/tranche" --driver-root "$node/driver")
# Half of the GPU's time.
share=("${simulated[@]}" "$build/bin/tranche" run "${place[@]}" --shadow-dir "$build/lib" --context-memory 64MiB --share 50)

simgpu() {
    "${simulated[@]}" "$build/sim/bin/simgpu" "$@"
}

in_root() { # DRIVER LABEL [NAME=VALUE]... COMMAND...: recorded under LABEL; DRIVER is bare, shadow, or governed and a number
    local under=(env TRANCHE_REGIONS="$node/claim")
    [ "${1%?}" != governed ] || under=("${share[@]}" --memory ${limit}MiB --)
    "${under[@]}" e2e/clients/in_root "$root" "$node" SIMGPU_TOPOLOGY=/gpu/topology SIMGPU_STATE=/gpu/state SIMGPU_DEV=/gpu/dev \
        LD_LIBRARY_PATH="/gpu/${1%[0-9]}" XDG_CACHE_HOME="/gpu/cache-$1" SIMGPU_LABEL="$2" "${@:3}"
}

record() { # LABEL FIELD: from the record
    simgpu record --json | tr -d ' \n' | grep -o "{\"group\":\"$1\",\"gpu_uuid\":\"$gpu\"[^}]*}" |
        sed -n "s/.*\"$2\":\([0-9]*\).*/\1/p"
}

switches() {
    simgpu record --json | sed "s/.*\"uuid\":\"$gpu\"[^}]*\"switches\":\([0-9]*\).*/\1/"
}

# What every client is judged by: it did with the shadow what it did without, in turns what it did alone, and nothing stays.
check_same() { # DRIVER WHAT BEFORE: after runs labelled BEFORE-WHAT and DRIVER-WHAT, whose output is in $node
    check "$2, $1: what it says" "" "$(cmp "$node/$3-$2.out" "$node/$1-$2.out" 2>&1)"
    check "$2, $1: kernels" "$(record "$3-$2" launches)" "$(record "$1-$2" launches)"
    check "$2, $1: the most that it held" "$(record "$3-$2" peak_bytes)" "$(record "$1-$2" peak_bytes)"
    check "$2, $1: nothing stays" 0 "$(record "$1-$2" bytes)"
}

run() { # DRIVER WHAT [NAME=VALUE]... COMMAND...
    in_root "$1" "$1-$2" "${@:3}" >"$node/$1-$2.out" 2>"$node/$1-$2.err"
    check "$2, $1: ends" "0 " "$? $(cat "$node/$1-$2.err")"
}

run_in_turns() { # WHAT [NAME=VALUE]... COMMAND...: beside a neighbour that always has work
    local governor neighbour try busy switches waited

    "${simulated[@]}" "$build/bin/tranche" governor "${place[@]}" >"$node/governor.log" 2>&1 &
    governor=$!
    until [ -e "$node/run/governor/status.json" ] || ! kill -0 $governor; do sleep 0.05; done
    mkfifo "$node/ready"
    SIMGPU_LABEL="neighbour-$1" "${share[@]}" --memory 256MiB -- "$build/e2e/load" --ready >"$node/ready" 2>"$node/said" &
    neighbour=$!
    read -r _ <"$node/ready"
    # A busy machine makes turns overrun their deadline, so the best of three counts.
    for try in 1 2 3; do
        switches=$(switches) waited=$(record "neighbour-$1" overlap_ns)
        run governed$try "$1" SIMGPU_KERNEL_US=20000 "${@:2}"
        check_same governed$try "$1" shadow
        switches=$(($(switches) - switches)) waited=$(($(record "neighbour-$1" overlap_ns) - waited))
        busy=$(record "governed$try-$1" busy_ns)
        ((waited * 4 > busy)) || break
    done
    # Without turns, all of the client's time is taken while the neighbour has work.
    check_at_most "$1: of the client's time, that in which its neighbour had work on the GPU" $((busy / 4)) $waited
    ((busy == 0)) || check "$1: more than one turn" 1 "$((switches > 2))"
    kill $neighbour
    wait $neighbour
    check "$1: the neighbour ends" "0 " "$? $(cat "$node/said")"
    kill $governor
    wait $governor
    rm -r "$node/run" "$node/ready"
}

run_each() { # WHAT [NAME=VALUE]... COMMAND...
    run bare "$@"
    run shadow "$@"
    check_same shadow "$1" bare
    run_in_turns "$@"
}

finish() {
    echo "$passed passed, $failed failed"
    exit $((failed > 0))
}

simgpu init && simgpu root "$node/driver" || exit 1
