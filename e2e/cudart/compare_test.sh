#!/bin/bash
# Compares the simulated driver with NVIDIA's, as far as that answers without a GPU, and the differences with the list of
# explained ones, differences.txt: one that is not listed, and a listed one that is gone, fail.
#
#   compare_test.sh BUILD    (run from the repository's root; $CC compiles)
#
#   export NAME REAL OURS                  type of the exported symbol and its version, "-" where there is none
#   answer NAME VERSION REAL OURS          what cuGetProcAddress and cuGetProcAddress_v2 give for a name at a CUDA version:
#                                          an exported symbol, or =RESULT/STATUS; drivers of CUDA 11.4, 12.2 and 12.4
#   call NAME WHEN REAL OURS               what a function returns (calls.c): before/ or after/ a cuInit that found no GPU,
#                                          with arguments of /zero or /room; "zero", "room" for both times, "always" for all
#   version REAL OURS                      cuDriverGetVersion
set -eu -o pipefail
export LC_ALL=C

build=$(cd "$1" && pwd)
list=e2e/cudart/differences.txt
cc=${CC:-cc}
nvidia=$build/nvidia
ours=$build/sim/lib/libcuda.so.1

scripts/nvidia-packages "$nvidia/470" bullseye libcuda1
scripts/nvidia-packages "$nvidia/535" bookworm libcuda1
scripts/nvidia-packages "$nvidia/550" trixie libcuda1

work=$(mktemp -d "${TMPDIR:-/tmp}/tranche-compare-XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/dev"
touch "$work/dev/nvidiactl" "$work/dev/nvidia0" "$work/dev/nvidia1" "$work/dev/nvidia-uvm"
for program in answers calls; do
    "$cc" -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 -o "$work/$program" e2e/cudart/$program.c -ldl
done

real() {
    echo "$nvidia/$1"/usr/lib/*/nvidia/current/libcuda.so.1
}

# Every CUDA version of the table, so that the simulator is as old as the driver that it is compared with.
as_old_as() {
    sed "s/^cuda_version = .*/cuda_version = $1/" e2e/simgpu/topologies/small.conf >"$work/topology-$1"
    export SIMGPU_TOPOLOGY=$work/topology-$1
}

exports() {
    nm -D --defined-only --with-symbol-versions "$1" |
        awk '{ split($3, part, "@"); print part[1], $2 (part[2] part[3] == "" ? "" : "@" part[2] part[3]) }' | sort
}

exports "$(real 550)" >"$work/exports-real"
exports "$ours" >"$work/exports-ours"
join -a 1 -a 2 -e - -o 0,1.2,2.2 "$work/exports-real" "$work/exports-ours" |
    awk '$2 != $3 { print "export", $0 }' >"$work/found"

# cudbg*: the debugger's, which nobody calls by name.
cat "$work/exports-real" "$work/exports-ours" | awk '$2 ~ /^T/ && !/^cudbg/ { print $1 }' | sort -u >"$work/exported"
awk '$1 == "function" && NF == 4 { print $2 }' e2e/cudart/asked.txt | sort -u - "$work/exported" >"$work/names"
join -v 2 "$work/exports-ours" "$work/exported" >"$work/lacking"

export SIMGPU_DEV=$work/dev SIMGPU_STATE=$work/state
compare_answers() { # DRIVER CUDA_VERSION
    as_old_as "$2"
    "$work/answers" "$(real "$1")" "$work/names" >"$work/real"
    "$work/answers" "$ours" "$work/names" >"$work/ours"
    awk -v lacking="$work/lacking" '
        function given() { return $5 == "=" ? "=" $6 "/" ($2 == "old" ? "" : $7) $8 : $5 }
        BEGIN { while ((getline name < lacking) > 0) skip[name] }
        NR == FNR && $1 == "version" { version = $2 " " $3; next }
        NR == FNR { real[$1, $2, $3, $4] = given(); next }
        $1 == "version" { if (version != $2 " " $3) print "version", version, $2, $3; next }
        !($1 in skip) && (($1, $2, $3, $4) in real) && real[$1, $2, $3, $4] != given() {
            print "answer", $1, $3, real[$1, $2, $3, $4], given()
        }' "$work/real" "$work/ours" >>"$work/found"
}
compare_answers 470 11040
compare_answers 535 12020
compare_answers 550 12040

"$build/sim/bin/simgpu" init
export CUDA_VISIBLE_DEVICES=-1
join "$work/exports-real" "$work/exports-ours" | awk '{ print $1 }' >"$work/both"
"$work/calls" "$(real 550)" "$work/both" >"$work/real" 2>"$work/errors"
"$work/calls" "$ours" "$work/both" >"$work/ours" 2>>"$work/errors"
paste -d ' ' "$work/real" "$work/ours" | sed 's/signal /signal-/g' |
    awk '$1 " " $2 " " $3 != $5 " " $6 " " $7 { exit 2 }
         { result[$1, $2, $3] = $4 " " $8; names[$1] }
         function differ(when) { return substr(when, 1, index(when, " ") - 1) != substr(when, index(when, " ") + 1) }
         function tell(name, when, results) { if (differ(results)) print "call", name, when, results }
         END {
             for (name in names) {
                 for (i = split("zero room", arguments); i > 0; i--) {
                     a = arguments[i]
                     same[a] = result[name, "before", a] == result[name, "after", a]
                 }
                 if (same["zero"] && same["room"] && result[name, "before", "zero"] == result[name, "before", "room"]) {
                     tell(name, "always", result[name, "before", "zero"])
                     continue
                 }
                 for (a in same) {
                     if (same[a]) { tell(name, a, result[name, "before", a]); continue }
                     tell(name, "before/" a, result[name, "before", a])
                     tell(name, "after/" a, result[name, "after", a])
                 }
             }
         }' >>"$work/found"

[ "$(wc -l <"$work/names")" -gt 600 ] && [ "$(wc -l <"$work/real")" -gt 2000 ] ||
    { echo "compare: asked for too little" >&2 && exit 1; }
explained=$(sort -u "$work/found" | e2e/cudart/explain -v list="$list") ||
    { echo "$explained" >&2 && echo "compare: fix the simulator, or explain in $list" >&2 && exit 1; }
echo "compare: the simulated driver and the real one: $explained"
