#!/bin/bash
# NVIDIA's real drivers behind the shadow libraries, as far as they answer without a GPU: every exported name resolves, to the
# shadow if that has it and to the driver otherwise, by every way to load the library and by cuGetProcAddress; and what the
# shadow's functions return is what the driver's do, but for the lines of behind.txt.
#
#   behind_test.sh BUILD [--names]    (run from the repository's root; $CC compiles; --names calls no function, which takes a
#                                     minute, since each call is made in a process of its own)
#
# Lines of behind.txt, whose words may end with * for all that begin so; a line that matches nothing fails:
#   DRIVER call NAME WHEN REAL SHADOWED      WHEN is before, or after, a cuInit that found no GPU, with arguments of /zero or /room
#   DRIVER answer NAME VERSION REAL SHADOWED what cuGetProcAddress or cuGetProcAddress_v2 gives
set -eu -o pipefail
export LC_ALL=C

build=$(cd "$1" && pwd)
only=${2:-}
list=e2e/cudart/behind.txt
cc=${CC:-cc}
nvidia=$build/nvidia
gpu=GPU-7e570000-0000-4000-8000-000000000000

scripts/nvidia-packages "$nvidia/470" bullseye libcuda1 libnvidia-ml1 nvidia-smi
scripts/nvidia-packages "$nvidia/535" bookworm libcuda1 libnvidia-ml1 nvidia-smi
scripts/nvidia-packages "$nvidia/550" trixie libcuda1 libnvidia-ml1 nvidia-smi

work=$(mktemp -d "${TMPDIR:-/tmp}/tranche-behind-XXXXXX")
trap 'rm -rf "$work"' EXIT
. intercept/tests/checks.sh

compile() {
    "$cc" -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 "$@"
}
for program in answers calls names; do
    compile -o "$work/$program" e2e/cudart/$program.c -ldl
done
compile -o "$work/make_claim" intercept/tests/make_claim.c intercept/tests/fixture.c
mkdir "$work/claim"
"$work/make_claim" "$work/claim" 0000000a $gpu 512 64
export TRANCHE_REGIONS=$work/claim

exports() { # LIBRARY
    nm -D --defined-only --format=posix "$1" | sed 's/[@ ].*//' | sort -u
}

# --- every name, by every way ---

check_names() { # DRIVER LIBRARY [KIND]
    local shadow=$work/$1/${3:-shadow}/$2.so.1 driver=$work/$1/${3:-shadow}/.tranche/driver-$2.so how
    exports "$shadow" >"$work/shadowed"
    exports "$driver" >"$work/wanted-names"
    check "$1, $2${3:+, $3}: names" 1 "$(($(wc -l <"$work/wanted-names") > 200))"
    # What is not in front is the driver's own: nothing is lost, and nothing that the shadow has is passed by.
    awk -v shadow="$shadow" -v driver="$driver" 'NR == FNR { own[$1]; next } { print $1, $1 in own ? shadow : driver }' \
        "$work/shadowed" "$work/wanted-names" >"$work/wanted"
    compile -o "$work/names-linked" e2e/cudart/names.c -Wl,--no-as-needed "$shadow" \
        -Wl,--unresolved-symbols=ignore-in-shared-libs -Wl,-rpath,"${shadow%/*}" -ldl
    for how in dlopen deepbind dlmopen linked; do
        "$work/names$([ $how != linked ] || echo -linked)" $how "$shadow" "$work/wanted-names" >"$work/got" 2>&1 || true
        check "$1, $2${3:+, $3}: what $how leads to" "" "$(diff "$work/wanted" "$work/got" | head)"
    done
}

# --- cuGetProcAddress, for every name at every version ---

check_answers() { # DRIVER [KIND]
    local bare=$work/$1/bare/libcuda.so.1 shadow=$work/$1/${2:-shadow}/libcuda.so.1
    exports "$shadow" >"$work/shadowed"
    exports "$bare" | sed 's/_ptsz$\|_ptds$//; s/_v[0-9]*$//' | sort -u >"$work/wanted-names"
    "$work/answers" "$bare" "$work/wanted-names" >"$work/real"
    "$work/answers" "$shadow" "$work/wanted-names" >"$work/ours"
    # By whom each is answered.
    check "$1${2:+, $2}: functions that cuGetProcAddress gives past the shadow" "" \
        "$(awk -v shadow="$shadow" 'NR == FNR { own[$1]; next } $5 in own && $6 != shadow { print $1, $5, $6 }' \
            "$work/shadowed" "$work/ours" | sort -u)"
    check "$1${2:+, $2}: functions of the shadow that cuGetProcAddress gives" 1 \
        "$(($(awk -v shadow="$shadow" '$6 == shadow { print $5 }' "$work/ours" | sort -u | wc -l) > 60))"
    awk -v driver="$1" '
        function given() { return $5 == "=" ? "=" $6 "/" $7 : $5 }
        # What cuGetProcAddress_v2 has to answer where the driver has only the older one: a name that is not found is no error.
        function by_the_old(answer) { return answer ~ /^=500/ ? "=0/1" : answer }
        $1 == "version" { next }
        NR == FNR { real[$1, $2, $3, $4] = given(); next }
        {
            was = ($1, $2, $3, $4) in real ? real[$1, $2, $3, $4] : by_the_old(real[$1, "old", $3, $4])
            if (was != given()) print driver, "answer", $1, $3, was, given()
        }' "$work/real" "$work/ours" | sort -u >>"$work/found"
}

# --- what the functions in front return ---

check_calls() { # DRIVER LIBRARY [KIND]
    local path=$work/$1
    exports "$path/${3:-shadow}/$2.so.1" >"$work/shadowed"
    exports "$path/bare/$2.so.1" | join - "$work/shadowed" >"$work/wanted-names"
    "$work/calls" "$path/bare/$2.so.1" "$work/wanted-names" >"$work/real" 2>"$work/errors" &
    "$work/calls" "$path/${3:-shadow}/$2.so.1" "$work/wanted-names" >"$work/ours" 2>>"$work/errors"
    wait $!
    check "$1, $2${3:+, $3}: calls" $(($(wc -l <"$work/wanted-names") * 4)) "$(wc -l <"$work/ours")"
    paste -d ' ' <(sed 's/signal /signal-/' "$work/real") <(sed 's/signal /signal-/' "$work/ours") |
        awk -v driver="$1" '$1 " " $2 " " $3 != $5 " " $6 " " $7 { exit 2 } $4 != $8 { print driver, "call", $1, $2 "/" $3, $4, $8 }' \
            >>"$work/found"
}

# NVIDIA's own nvidia-smi, which takes a private table of NVML's as well.
check_smi() { # DRIVER
    local where what
    for what in "" -L "-q -x" "--query-gpu=name,memory.total --format=csv"; do
        for where in bare shadow; do
            # shellcheck disable=SC2086 # arguments
            { LD_LIBRARY_PATH=$work/$1/$where "$nvidia/$1/usr/lib/nvidia/current/nvidia-smi" $what || echo "status $?"; } \
                >"$work/smi-$where" 2>&1
        done
        check "$1: nvidia-smi $what" "$(cat "$work/smi-bare")" "$(cat "$work/smi-shadow")"
        check "$1: nvidia-smi $what finds NVML, and no GPU" 1 "$(grep -c "couldn't communicate with the NVIDIA driver" "$work/smi-shadow")"
    done
}

for driver in 470 535 550; do
    mkdir -p "$work/$driver/bare" "$work/$driver/shadow/.tranche"
    for library in libcuda libnvidia-ml; do
        cp "$nvidia/$driver"/usr/lib/*/nvidia/current/$library.so.1 "$work/$driver/bare/"
        cp "$work/$driver/bare/$library.so.1" "$work/$driver/shadow/.tranche/driver-$library.so"
        cp "$build/lib/$library.so.1" "$work/$driver/shadow/"
        check_names $driver $library
    done
    # The library of compute shares alone.
    mkdir -p "$work/$driver/compute/.tranche"
    cp "$work/$driver/bare/libcuda.so.1" "$work/$driver/compute/.tranche/driver-libcuda.so"
    cp "$build/lib/compute/libcuda.so.1" "$work/$driver/compute/"
    check_names $driver libcuda compute
    check_answers $driver
    check_answers $driver compute
    if [ "$only" != --names ]; then
        check_calls $driver libcuda
        check_calls $driver libcuda compute
        check_calls $driver libnvidia-ml
    fi
    check_smi $driver
done
[ "$only" != --names ] || { grep -v ' call ' $list >"$work/list" && list=$work/list; }
explained=$(sort -u "$work/found" | e2e/cudart/explain -v list="$list") && echo "behind: $explained" && explained=
check "differences are those of $list" "" "$explained"

echo "behind: $passed passed, $failed failed"
exit $((failed > 0))
