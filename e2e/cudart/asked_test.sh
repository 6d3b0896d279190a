#!/bin/bash
# Has NVIDIA's runtime libraries ask the simulated driver for functions, and compares what they ask for with the list of
# it, asked.txt, by which the simulator's own tests see that it knows all of them.
#
#   asked_test.sh BUILD [--write]    (run from the repository's root; $CC compiles; --write writes the list anew)
set -eu -o pipefail

build=$(cd "$1" && pwd)
list=e2e/cudart/asked.txt
cc=${CC:-cc}
nvidia=$build/nvidia

scripts/nvidia-packages "$nvidia/470" bullseye libcudart11.0
scripts/nvidia-packages "$nvidia/535" bookworm libcudart11.0
scripts/nvidia-packages "$nvidia/550" trixie libcudart12

work=$(mktemp -d "${TMPDIR:-/tmp}/tranche-cudart-XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/dev"
touch "$work/dev/nvidiactl" "$work/dev/nvidia0" "$work/dev/nvidia1" "$work/dev/nvidia-uvm"
"$cc" -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 -shared -fPIC -o "$work/asked.so" e2e/cudart/asked.c -ldl
"$cc" -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 -o "$work/ask" e2e/cudart/ask.c -ldl

export SIMGPU_DEV=$work/dev SIMGPU_STATE=$work/state SIMGPU_TOPOLOGY=$PWD/e2e/simgpu/topologies/small.conf
"$build/sim/bin/simgpu" init
for library in "$nvidia"/*/usr/lib/*/libcudart.so.1?.*.*; do
    # It fails at the table by which it tests whether the driver is NVIDIA's own, the last thing that it asks for.
    ASKED=$work/asked-${library##*libcudart.so.} LD_LIBRARY_PATH=$build/sim/lib LD_PRELOAD=$work/asked.so \
        "$work/ask" "$library" || :
done
[ "$(ls "$work"/asked-* | wc -l)" = 3 ] || { echo "asked: not all runtime libraries asked for something" >&2 && exit 1; }
sed 's/ no$//' "$work"/asked-* | LC_ALL=C sort -u >"$work/list"
if [ "${2:-}" = --write ]; then
    cp "$work/list" "$list"
elif ! diff "$list" "$work/list" >&2; then
    echo "asked: the runtime libraries ask for other things than $list says; asked_test.sh BUILD --write writes it anew" >&2
    exit 1
fi
echo "asked: $(wc -l <"$list") things that $(ls "$work"/asked-* | wc -l) runtime libraries ask for"
