#!/bin/bash
# Runs what NVIDIA's runtime library does with the driver (replay/) on the simulated GPU, without and with the shadow
# library under a claim. Judged by the simulator's record, and by what each call returned without it.
#
#   replay_test.sh BUILD [governed|compute]    (run from the repository's root; $CC compiles)
set -u -o pipefail

build=$(cd "$1" && pwd)
cc=${CC:-gcc}
tests=intercept/tests
mib=$((1024 * 1024))
limit=512
context=64
gpu=GPU-7e570000-0000-4000-8000-000000000000
. intercept/tests/checks.sh

work=$(mktemp -d "${TMPDIR:-/tmp}/tranche-replay-XXXXXX")
program=
cleanup() {
    [ -z "$program" ] || kill -KILL "$program" 2>/dev/null
    rm -rf "$work"
}
trap cleanup EXIT

compile() {
    "$cc" -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 -g "$@" || exit 1
}

mkdir -p "$work/dev" "$work/bare" "$work/shadow/.tranche" "$work/claim"
touch "$work/dev/nvidiactl" "$work/dev/nvidia0" "$work/dev/nvidia-uvm"
for library in libcuda.so.1 libnvidia-ml.so.1; do
    cp "$build/sim/lib/$library" "$work/bare/"
    cp "$build/lib/$library" "$work/shadow/"
    cp "$build/sim/lib/$library" "$work/shadow/.tranche/driver-${library%.1}"
done
kind=${2:-}
[ -z "$kind" ] || cp "$build/lib/$kind/libcuda.so.1" "$work/shadow/"
compile -I e2e/simgpu/include -o "$work/replay" e2e/cudart/replay/*.c -ldl -pthread
compile -o "$work/make_claim" $tests/make_claim.c $tests/fixture.c
compile -o "$work/nvml" $tests/nvml_probe.c -L"$build/sim/lib" -l:libnvidia-ml.so.1

export SIMGPU_STATE=$work/state SIMGPU_DEV=$work/dev SIMGPU_TOPOLOGY=$work/topology
simgpu=$build/sim/bin/simgpu

new_node() { # [LINE]: lines for the topology
    { echo "${1:-}" && cat e2e/simgpu/topologies/small.conf; } >"$work/topology"
    rm -rf "$work/state" "$work/claim/"*
    "$simgpu" init || exit 1
    "$work/make_claim" "$work/claim" 0000000a $gpu $limit $context
}

record() { # DRIVER FIELD: from the record
    "$simgpu" record --json | tr -d ' \n' | grep -o "{\"group\":\"$1\",\"gpu_uuid\":\"$gpu\"[^}]*}" |
        sed -n "s/.*\"$2\":\([0-9]*\).*/\1/p"
}

held() { # what the program holds, in MiB; nothing is recorded of one that never held anything
    local bytes
    bytes=$(record "$driver" bytes)
    echo $((${bytes:-0} / mib))
}

counted() { # what the claim counts, in MiB
    LD_LIBRARY_PATH=$work/shadow TRANCHE_REGIONS=$work/claim "$work/nvml" | cut -d' ' -f2
}

start() { # DRIVER VERSION LOADING SCENARIO
    driver=$1
    what="$*"
    coproc replay {
        SIMGPU_LABEL=$1 LD_LIBRARY_PATH=$work/$1 TRANCHE_REGIONS=$work/claim exec "$work/replay" "${@:2}" \
            2>"$work/$1.calls"
    }
    # Of our own: the shell forgets the coprocess's when it ends.
    program=$!
    exec {from}<&"${replay[0]}" {to}>&"${replay[1]}"
}

stage() { # NAME HELD [COUNTED]: waits for it, and checks what the program holds there; the claim counts the same, or COUNTED
    local line=
    read -r -u "$from" line
    check "$what: stage" "$1" "$line"
    [ "$line" = "$1" ] || return
    check "$what: $1: held" "$2" "$(held)"
    [ "$driver" = bare ] || check "$what: $1: counted" "$([ "$kind" = compute ] && echo 0 || echo "${3:-$2}")" "$(counted)"
    echo >&"$to"
}

said() { # TEXT: a line of the program's
    local line=
    read -r -u "$from" line
    check "$what: says" "$1" "$line"
}

ended() {
    wait "$program"
    check "$what: ends" 0 $?
    program=
    exec {from}<&- {to}>&-
    check "$what: afterwards: held" 0 "$(held)"
    [ "$driver" = bare ] || check "$what: afterwards: counted" 0 "$(counted)"
}

same_calls() {
    check "$what: calls" "" "$(diff "$work/bare.calls" "$work/shadow.calls")"
}

total() { # LIMIT [GPUS]: the memory that the program sees, in MiB
    [ "$driver" = bare ] || [ "$kind" = compute ] && echo $((1024 * ${2:-1})) || echo "$1"
}

own_of() { # KIND...: what the driver has taken on its own, if $own is one of these
    case " $* " in
    *" $own "*) [ "$own" = code ] && echo 18 || echo 33 ;; # 16 MiB of code are in a context's cost
    *) echo 0 ;;
    esac
}

# --- each call, for each runtime and each way to load a program ---

# A module that is loaded by a public function counts when it is loaded, with a block more than it takes: the bound for
# variables in PTX. One that a private function has loaded counts when its variable is first used.
each_call() { # DRIVER VERSION LOADING
    local public=$(($3 >= 16)) held=$((context + 8 + 4))
    start "$1" "$2" "$3" calls
    stage started 0
    stage context $((context + 8))
    stage module $held $((context + 8 + 6 * public))
    stage variable $held $((held + 2 * public))
    said "total $(total $limit)"
    stage freed $((context + 4)) $((context + 4 + 2 * public))
    stage reset 0
    stage again $held $((held + 2 * public))
    stage ended 0
    ended
}

new_node
for runtime in "11020 1" "11020 16" "11080 6" "11080 8" "12040 6" "12040 16" "12040 17"; do
    # shellcheck disable=SC2086
    each_call bare $runtime
    # shellcheck disable=SC2086
    each_call shadow $runtime
    same_calls
done

# --- a primary context that a private function has made ---

new_node "private_context = active"
for driver in bare shadow; do
    start $driver 11080 1 calls
    stage started $context 0
    stage context $((context + 8))
    stage module $((context + 12)) $((context + 8))
    stage variable $((context + 12))
    said "total $(total $limit)"
    stage freed $((context + 4))
    stage reset 0
    stage again $((context + 12))
    stage ended 0
    ended
done
same_calls
if [ "$kind" != compute ]; then
    start shadow 11080 1 full
    stage full $limit
    stage reset 0
    ended
    check_at_most "$what: at no moment more" $((limit * mib)) "$(record shadow peak_bytes)"
fi
start shadow 12040 17 threads
stage done $((context + 4 + 8 * 2)) $((context + 6 + 8 * 2))
stage reset 0
ended

# --- memory that the driver takes on its own: not counted here; the device plugin compares with what NVML reports ---

for own in launch code graph; do
    new_node "own_${own}_mib = 33"
    for driver in bare shadow; do
        start $driver 12040 16 graphs
        stage loaded $((context + 12 + $(own_of code))) $((context + 8 + 6))
        stage launched $((context + 12 + $(own_of launch code))) $((context + 8 + 6))
        stage graph $((context + 12 + $(own_of launch code graph))) $((context + 8 + 6))
        stage freed $((context + 12 + $(own_of launch code))) $((context + 8 + 6))
        stage reset 0
        ended
    done
    same_calls
done

# --- the limit ---

new_node
if [ "$kind" != compute ]; then
    start shadow 11020 1 full
    stage full $limit
    stage reset 0
    ended
    start shadow 12040 17 full
    stage full $((limit - 2)) $limit
    stage reset 0
    ended
    check_at_most "at no moment more" $((limit * mib)) "$(record shadow peak_bytes)"
fi

# --- two devices: what is held of each, and what the claim on the first counts ---

new_node
first=$gpu
second=${gpu%0}1
touch "$work/dev/nvidia1"
"$work/make_claim" "$work/claim" 0000000b $second 300 96
for runtime in "11020 1" "12040 17"; do
    # A library counts in every context when it is loaded.
    counted_first=$((context + 8))
    [ "$runtime" = "11020 1" ] || counted_first=$((context + 8 + 6))
    for driver in bare shadow; do
        for gpu in $first $second; do
            # shellcheck disable=SC2086
            start $driver $runtime devices
            said "total $(total 300 2)"
            if [ "$gpu" = "$first" ]; then
                stage two $((context + 8)) $counted_first
                stage one $((context + 8)) $counted_first
            else
                stage two $((96 + 16 + 4)) $counted_first
                stage one 0 $counted_first
            fi
            stage ended 0
            ended
        done
    done
    same_calls
done
gpu=$first
rm "$work/dev/nvidia1"

# --- threads and children ---

new_node

for driver in bare shadow; do
    start $driver 12040 17 threads
    stage done $((context + 4 + 8 * 2)) $((context + 6 + 8 * 2))
    stage reset 0
    ended
    sort -o "$work/$driver.calls" "$work/$driver.calls"
done
same_calls
for driver in bare shadow; do
    start $driver 11080 6 forked
    stage both $((2 * context + 16 + 8))
    stage one $((context + 16))
    stage ended 0
    ended
done
same_calls

echo "$passed passed, $failed failed"
exit $((failed > 0))
