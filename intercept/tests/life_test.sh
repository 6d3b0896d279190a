#!/bin/bash
# Starts, ends and kills processes, runs many at once, and damages regions, with the shadow in front of the simulated GPU.
#
#   life_test.sh BUILD [SECONDS [TEST]]    (run from the repository's root; $CC compiles)
#
# SECONDS is how long a stopped process stays stopped; TEST is "broken", "crowd" or one of life_test.c's, to run it alone.
set -u -o pipefail

build=$1
seconds=${2:-2}
only=${3:-}
tests=intercept/tests
sim=e2e/simgpu
cc=${CC:-gcc}
failures=0

if [ ! -e "$build/sim/lib/libcuda.so.1" ] || [ -e /.tranche ]; then
    echo "life: no simulated GPU in $build/sim (make sim builds it), or a /.tranche that hides this test's claims" >&2
    exit 1
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/tranche-life-XXXXXX")
trap 'rm -rf "$work"' EXIT

compile() {
    "$cc" -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 -g "$@" || { echo "cannot compile: $*" >&2 && exit 1; }
}

lib=$work/lib
mkdir -p "$work/dev" "$lib/.tranche" "$work/claims" "$work/crowd"
touch "$work/dev/nvidiactl" "$work/dev/nvidia0" "$work/dev/nvidia1" "$work/dev/nvidia-uvm"
for library in libcuda.so.1 libnvidia-ml.so.1; do
    cp "$build/lib/$library" "$lib/"
    cp "$build/sim/lib/$library" "$lib/.tranche/driver-${library%.1}"
done
mapfile -t state < <(cd $sim && ls *.c mig/*.c)
compile -o "$work/claim" $tests/make_claim.c $tests/fixture.c
compile -o "$work/life" $tests/life.c -ldl -pthread
compile -I $sim -o "$work/life_test" $tests/life_test.c $tests/check.c "${state[@]/#/$sim/}" -ldl -pthread

compile -I $sim -o "$work/life_broken" $tests/life_broken.c $tests/check.c $tests/fixture.c "${state[@]/#/$sim/}" \
    -ldl -pthread

gpu=GPU-7e570000-0000-4000-8000-000000000000
# A GPU and a limit with room for a context of each process of a crowd.
sed 's/^memory_mib = 1024$/memory_mib = 65536/' $sim/topologies/small.conf >"$work/large.conf"
"$work/claim" "$work/claims" 0123abcd $gpu 900 64
"$work/claim" "$work/crowd" 0123abcd $gpu 40000 64

export SIMGPU_DEV=$work/dev
export LIFE_PAGE=$work/page LIFE_BARE=$build/sim/lib LIFE_DRIVER=$lib/.tranche/driver-libcuda.so

with_gpu() { # TOPOLOGY CLAIMS COMMAND...
    export SIMGPU_TOPOLOGY=$1 SIMGPU_STATE=$work/state TRANCHE_REGIONS=$work/$2
    "$build/sim/bin/simgpu" init || exit 1
    LD_LIBRARY_PATH=$lib "${@:3}" || failures=$((failures + 1))
}

chmod -R a+rX "$work" # also for a program that is not to be able to read everything
case $only in
broken | crowd) ;;
*) with_gpu $sim/topologies/small.conf claims "$work/life_test" "$work/life" "$seconds" ${only:+"$only"} ;;
esac
if [ "${only:-broken}" = broken ]; then
    with_gpu $sim/topologies/small.conf claims "$work/life_broken"
fi
if [ "${only:-crowd}" = crowd ]; then
    with_gpu "$work/large.conf" crowd "$work/life_test" "$work/life" crowd 500 "$build/sim/lib"
fi
exit $((failures > 0))
