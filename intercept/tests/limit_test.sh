#!/bin/bash
# Tests that the limit holds, in front of the simulated GPU, by the simulator's record of physical memory.
#
#   limit_test.sh BUILD [governed]    (run from the repository's root; $CC compiles; SHADOW_TEST_SEED repeats a random part)
set -u -o pipefail

build=$1
tests=intercept/tests
cc=${CC:-gcc}
seed=${SHADOW_TEST_SEED:-$RANDOM}
simgpu=$build/sim/bin/simgpu
. intercept/tests/checks.sh

if [ ! -e "$build/sim/lib/libcuda.so.1" ] || [ -e /.tranche ]; then
    echo "no simulated GPU in $build/sim (make sim builds it), or a /.tranche that hides this test's claims" >&2
    exit 1
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/tranche-limit-XXXXXX")
# Ends what this script started and has not ended yet: the holders.
holders=()
cleanup() {
    for holder in "${holders[@]}"; do
        kill -KILL "$holder" 2>/dev/null
    done
    rm -rf "$work"
}
trap cleanup EXIT

compile() {
    "$cc" -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 -g "$@" || { echo "cannot compile: $*" >&2 && exit 1; }
}

# --- two simulated GPUs, a driver library behind the shadow, two claims on the first GPU and one on the second ---

mib=$((1024 * 1024))
limit=512
first=GPU-7e570000-0000-4000-8000-000000000000
second=GPU-7e570000-0000-4000-8000-000000000001
lib=$work/lib
mkdir -p "$work/dev" "$lib/.tranche" "$work/a" "$work/b" "$work/two" "$work/three"
touch "$work/dev/nvidiactl" "$work/dev/nvidia0" "$work/dev/nvidia1" "$work/dev/nvidia-uvm"
for library in libcuda.so.1 libnvidia-ml.so.1; do
    cp "$build/lib/$library" "$lib/"
    cp "$build/sim/lib/$library" "$lib/.tranche/driver-${library%.1}"
done
[ "${2:-}" = governed ] && cp "$build/lib/governed/libcuda.so.1" "$lib/"
compile -o "$work/claim" $tests/make_claim.c $tests/fixture.c
compile -o "$work/worker" $tests/worker.c -L"$build/sim/lib" -l:libcuda.so.1 -pthread
compile -o "$work/table_ends" $tests/table_ends.c -L"$build/sim/lib" -l:libcuda.so.1
compile -o "$work/passing" $tests/passing.c -L"$build/sim/lib" -l:libcuda.so.1
compile -I e2e/campaign -o "$work/images" $tests/image_worker.c e2e/campaign/families/images.c -L"$build/sim/lib" -l:libcuda.so.1 -ldl
compile -o "$work/nvml" $tests/nvml_probe.c -L"$build/sim/lib" -l:libnvidia-ml.so.1
compile -o "$work/probe" $tests/probe.c -ldl
"$work/claim" "$work/a" 0000000a $first $limit 64
"$work/claim" "$work/b" 0000000b $first 256 64
"$work/claim" "$work/b" 000000b2 $second 300 96
"$work/claim" "$work/two" 00000002 $first $limit 64
"$work/claim" "$work/three" 00000003 $first $limit 64

export SIMGPU_TOPOLOGY=$PWD/e2e/simgpu/topologies/small.conf
export SIMGPU_STATE=$work/state
export SIMGPU_DEV=$work/dev
export LD_LIBRARY_PATH=$lib
"$simgpu" init || exit 1

under() { # CLAIMS COMMAND...: runs a command under the claims of a directory, recorded under its name
    SIMGPU_LABEL=$1 TRANCHE_REGIONS=$work/$1 "${@:2}"
}

record() { # GROUP GPU FIELD: from the record, a group's bytes or peak_bytes of a GPU in bytes
    "$simgpu" record --json | tr -d ' \n' | grep -o "{\"group\":\"$1\",\"gpu_uuid\":\"$2\"[^}]*}" |
        sed -n "s/.*\"$3\":\([0-9]*\).*/\1/p"
}

hold() { # CLAIMS ARGUMENT...: starts a worker that says "ready"; its process is the last of holders
    mkfifo "$work/fifo"
    # By env, so that the process which we know is the worker and not a shell around it.
    env SIMGPU_LABEL="$1" TRANCHE_REGIONS="$work/$1" "$work/worker" "${@:2}" >"$work/fifo" &
    holders+=($!)
    local line=
    while read -r line && [ "$line" != ready ]; do
        echo "$line"
    done <"$work/fifo"
    rm "$work/fifo"
    check "$* is ready" ready "$line"
}

drop() { # ends the last holder
    kill -KILL "${holders[-1]}"
    wait "${holders[-1]}" 2>/dev/null
    unset 'holders[-1]'
}

# --- one process ---

for way in dlopen global deepbind dlmopen again procaddress procaddress_v2; do
    check "$way" held "$(PROBE_TOO_MUCH_MIB=600 under a "$work/probe" $way)"
done
check "the fraction, before anything is taken" "512 0 512 / 512 0 512" "$(under a "$work/nvml")"
hold a hold 100
check "what NVML shows" "512 164 348 / 512 164 348" "$(under a "$work/nvml")"
check "what is physically taken" $((164 * mib)) "$(record a $first bytes)"
check "what NVML shows of another claim on the GPU" "256 0 256 / 256 0 256" "$(under b "$work/nvml")"
drop
check "what NVML shows when the process is dead" "512 0 512 / 512 0 512" "$(under a "$work/nvml")"
check "NVML without a region" "error 17" "$(TRANCHE_REGIONS=/nonexistent "$work/nvml" 2>/dev/null)"

hold a greedy >"$work/said"
check "a greedy process was refused" "refused with 2, 0 of 512 MiB left" "$(cat "$work/said")"
check "a greedy process gets its limit and not more" $((limit * mib)) "$(record a $first bytes)"
check "at no moment more" $((limit * mib)) "$(record a $first peak_bytes)"
hold b greedy >"$work/said"
check "its neighbour gets its own limit" $((256 * mib)) "$(record b $first bytes)"
check "a second process of the claim gets nothing" 1 "$(under a "$work/worker" hold 0 >/dev/null 2>&1; echo $?)"
drop
drop
hold a greedy >"$work/said"
check "what the dead had can be had at once" "refused with 2, 0 of 512 MiB left" "$(cat "$work/said")"
drop
CUDA_VISIBLE_DEVICES=1 hold b greedy >"$work/said"
check "another GPU has its own limit" "refused with 2, 0 of 300 MiB left" "$(cat "$work/said")"
check "by the record" $((300 * mib)) "$(record b $second peak_bytes)"
drop
check "a GPU without a claim" 1 "$(CUDA_VISIBLE_DEVICES=1 under a "$work/worker" hold 1 >/dev/null 2>"$work/said"; echo $?)"
check "says why" 1 "$(grep -c 'no claim on it' "$work/said")"
check "a forked child" 0 "$(under a "$work/worker" forked >/dev/null; echo $?)"
check_at_most "a forked child, by the record" $((limit * mib)) "$(record a $first peak_bytes)"

rm -rf "$work/g" && mkdir "$work/g"
"$work/claim" "$work/g" 0000000d $first $limit 64
check "graphs that fit" 0 "$(TRANCHE_REGIONS=$work/g SIMGPU_LABEL=graphs "$work/worker" graphs >/dev/null; echo $?)"
check "graphs that fit: at most the limit" $((limit * mib)) "$(record graphs $first peak_bytes)"

# --- threads that are in each other's way ---

for what in launch reset; do
    rm -rf "$work/t" && mkdir "$work/t"
    "$work/claim" "$work/t" 0000000c $first $limit 64
    check "$what: ends" 0 "$(TRANCHE_REGIONS=$work/t SIMGPU_LABEL=$what "$work/worker" $what 2 >/dev/null; echo $?)"
    check_at_most "$what: at no moment more than the limit" $((limit * mib)) "$(record $what $first peak_bytes)"
done

check "advice about a GPU without a claim" 0 "$(under a "$work/worker" advise 2>/dev/null; echo $?)"

# Memory of malloc on a node whose GPUs use it (HMM): it would not count.
hmm() { # COMMAND...
    SIMGPU_TOPOLOGY=$PWD/e2e/simgpu/topologies/hmm.conf SIMGPU_STATE=$work/hmm-state SIMGPU_LABEL=own "$@"
}
own=GPU-7e570001-0000-4000-8000-000000000000
mkdir "$work/own"
"$work/claim" "$work/own" 0000000d $own $limit 64
"$work/claim" "$work/own" 000000d2 GPU-7e570001-0000-4000-8000-000000000001 $limit 96
hmm "$simgpu" init
check "memory of malloc, without the shadow" "0 0 801; 0 0; 0" \
    "$(LD_LIBRARY_PATH=$build/sim/lib hmm "$work/worker" own)"
check "it was on the GPU beside the managed memory" $((80 * mib)) "$(hmm record own $own peak_bytes)"
hmm "$simgpu" init
check "memory of malloc to a GPU" "800 800 800; 0 0; 0" \
    "$(TRANCHE_REGIONS=$work/own hmm "$work/worker" own 2>"$work/said")"
check "managed memory alone was on the GPU" $((72 * mib)) "$(hmm record own $own peak_bytes)"
check "says why, once" 1 "$(grep -c 'would not count toward the limit' "$work/said")"
check "on a node without HMM the driver answers" "1 1 1; 0 0; 1" "$(under b "$work/worker" own 2>"$work/said")"
check "and the library says nothing" "" "$(cat "$work/said")"

check "all that is free, by pools" "448 free, got 448, freed 112, got 112 again" "$(under a "$work/worker" full async 2>&1)"
check "all of a preallocated pool" "448 free, got 224, freed 56, got 56 again" "$(under a "$work/worker" full prealloc 2>&1)"
# One block is in reserve, so that what was freed in other blocks can be had again.
check "all that is free, by small pieces" "448 free, got 446, freed 3568, got 3568 again" "$(under a "$work/worker" full small 2>&1)"
check "and not more than the limit" $((limit * mib)) "$(record a $first peak_bytes)"

check "refused from a pool in the stream of another GPU" 0 "$(under b "$work/worker" elsewhere 2>&1; echo $?)"

check "what a green context costs" 0 "$(under a "$work/worker" green-cost 2>&1; echo $?)"

check "limits of green contexts of two GPUs, after resets" 0 "$(under b "$work/worker" green 2>&1; echo $?)"

check "a pool's memory after its last green context" 0 "$(under a "$work/worker" green-pool 2>&1; echo $?)"

check "memory in a context that has a former one's handle" 0 "$(under a "$work/worker" former 2>&1; echo $?)"

check "what boxes of a sparse array show" 0 "$(under a "$work/worker" tiles 2>&1; echo $?)"

check "what a child had that died, without a descriptor left" 0 "$(under a "$work/worker" spare 2>&1; echo $?)"

check "without standard streams, whose numbers are not the library's" 0 "$(under a "$work/worker" streams)"

# --- tables filled to their ends ---

for scenario in exports imports blind pools "full $work/t/0000000c/usage"; do
    rm -rf "$work/t" && mkdir "$work/t"
    "$work/claim" "$work/t" 0000000c $first $limit 64
    check "$scenario: ends" 0 "$(TRANCHE_REGIONS=$work/t SIMGPU_LABEL=${scenario% *} "$work/table_ends" $scenario 2>"$work/said" >/dev/null; echo $?)"
    check "$scenario: says" "$([[ $scenario = full* ]] && echo 'memory cannot be exported')" "$(sed 's/^tranche: \(.*\): its claim.*/\1/' "$work/said")"
    check_at_most "$scenario: at no moment more than the limit" $((limit * mib)) "$(record "${scenario% *}" $first peak_bytes)"
    check "$scenario: nothing stays" 0 "$(record "${scenario% *}" $first bytes)"
done

# --- memory that leaves its process ---

for scenario in 'orphans descriptor' 'orphans handle' 'orphans mapping' 'orphans external' 'orphans pool-descriptor' \
    'orphans pool' 'orphans dma-buf' 'orphans ipc' 'many 150' 'small 64' dma-buf "far $work/b"; do
    label=${scenario/ /-} label=${label%%/*}
    rm -rf "$work/t" && mkdir "$work/t"
    "$work/claim" "$work/t" 0000000c $first $limit 64
    "$work/claim" "$work/t" 000000c2 $second $limit 96
    check "$scenario: ends" 0 "$(TRANCHE_REGIONS=$work/t SIMGPU_LABEL=$label "$work/passing" $scenario >&2; echo $?)"
    check_at_most "$scenario: at no moment more than the limit" $((limit * mib)) "$(record "$label" $first peak_bytes)"
    check "$scenario: nothing stays" 0 "$(record "$label" $first bytes)"
done

# --- damaged images: alone on their GPU ---

for mode in LAZY EAGER; do
    for images in $seed $((seed + 1)) $((seed + 2)); do
        CUDA_MODULE_LOADING=$mode under a "$work/images" "$lib/.tranche/driver-libcuda.so" "$images" 400 >"$work/said"
        check "seed $images: damaged images, $mode" 0 $?
    done
done
check_at_most "damaged images, by the record" $((limit * mib)) "$(record a $first peak_bytes)"
check "nothing is left of them" "512 0 512 / 512 0 512" "$(under a "$work/nvml")"

# --- memory of other claims ---

# What was imported of another claim's pool is its importer's to pay, since nobody else can be seen to when its owner is dead.
hold three borrow "$work/two" two 256 >"$work/said"
check_at_most "what is held in all, the pool of a dead process of another claim included" $((limit * mib)) \
    $(($(record two $first bytes) + $(record three $first bytes)))
drop

# --- many processes ---

# A pool grows as the driver likes: each time it is asked, there must be room for that. Nobody is killed here.
for count in two:2 three:3; do
    name=${count%:*}
    check "seed $seed: $name processes with pools" 0 "$(under $name "$work/worker" pools ${count#*:} 4000 "$seed" >&2; echo $?)"
    check_at_most "seed $seed: peak of $name processes with pools" $((limit * mib)) "$(record $name $first peak_bytes)"
done

under a "$work/worker" campaign 12 5 "$seed" >"$work/a.log" &
campaign=$!
under b "$work/worker" campaign 12 5 "$((seed + 1))" >"$work/b.log"
check "seed $seed: neighbours at random" 0 $?
wait $campaign
check "seed $seed: at random" 0 $?
check_at_most "seed $seed: peak of the one claim" $((limit * mib)) "$(record a $first peak_bytes)"
check_at_most "seed $seed: peak of the other" $((256 * mib)) "$(record b $first peak_bytes)"
check "seed $seed: physically free afterwards" 0 "$(record a $first bytes)"
check "seed $seed: counted as free afterwards" "512 0 512 / 512 0 512" "$(under a "$work/nvml")"
cat "$work/a.log" "$work/b.log"

# The neighbour's holder asks in vain while a stopped process of its claim holds everything, but it is answered at once.
hold a greedy >/dev/null
kill -STOP "${holders[-1]}"
began=$(date +%s%N)
under a "$work/worker" hold 0 >/dev/null 2>&1
check_at_most "milliseconds for an answer beside a stopped process" 1000 $((($(date +%s%N) - began) / 1000000))
drop

bare=$(LD_LIBRARY_PATH=$build/sim/lib SIMGPU_LABEL=bare "$work/worker" init 500)
ours=$(under a "$work/worker" init 500)
check_at_most "milliseconds until 500 processes have called cuInit (bare: $bare)" $((2 * bare + 1000)) "$ours"

echo "$passed passed, $failed failed"
exit $((failed > 0))
