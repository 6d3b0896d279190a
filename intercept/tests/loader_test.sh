#!/bin/bash
# How the shadow libraries look from outside, and what a program gets that reaches for the driver in each of the ways that
# the loader offers. The driver behind the shadow is the fake one.
#
#   loader_test.sh BUILD    (run from the repository's root; $CC compiles)
set -u -o pipefail

build=$1
tests=intercept/tests
work=$(mktemp -d "${TMPDIR:-/tmp}/tranche-loader-XXXXXX")
trap 'rm -rf "$work"' EXIT
cc=${CC:-gcc}
passed=0
failed=0

check() { # WHAT EXPECTED GOT
    if [ "$2" = "$3" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf '%s: expected\n%s\ngot\n%s\n' "$1" "$2" "$3" >&2
    fi
}

compile() {
    "$cc" -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 -g "$@" || { echo "cannot compile: $*" >&2 && exit 1; }
}

# --- the files ---

compile -o "$work/exports" $tests/exports.c
for library in libcuda.so.1 libnvidia-ml.so.1; do
    file=$build/lib/$library
    check "$library exports the table and nothing else" "$("$work/exports" $library | sort)" \
        "$(nm -D --defined-only --format=posix "$file" | cut -d' ' -f1 | sort)"
    dynamic=$(readelf -dW "$file")
    check "$library: first dependency" "\$ORIGIN/.tranche/driver-${library%.1}" \
        "$(sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' <<<"$dynamic" | head -1)"
    check "$library: name" "$library" "$(sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p' <<<"$dynamic")"
    check "$library: is never unloaded" 1 "$(grep -c NODELETE <<<"$dynamic")"
    newest=$(objdump -T "$file" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -1)
    check "$library: runs with glibc 2.17 ($newest)" GLIBC_2.17 \
        "$(printf '%s\n' GLIBC_2.17 "$newest" | sort -V | tail -1)"
    check "$library: starts no thread, sets no signal handler, ends no process" "" \
        "$(nm -D --undefined-only "$file" | grep -E 'pthread_create|clone|sigaction|signal|abort|exit$|_exit|printf$' |
            grep -vE 'v?snprintf' | awk '{print $2}')"
done

# --- the ways to the driver ---

if [ -e /.tranche ]; then
    echo "skipped: /.tranche exists, so the claims of this test would not be used" >&2
    echo "$passed passed, $failed failed"
    exit $((failed > 0))
fi

lib=$work/lib
mkdir -p "$lib/.tranche" "$work/bare" "$work/claims"
cp "$build/lib/libcuda.so.1" "$lib/"
ln -s libcuda.so.1 "$lib/libcuda.so"
compile -shared -fPIC -DFAKE_DRIVER_LIBRARY -Wl,-soname,libcuda.so.1 -o "$lib/.tranche/driver-libcuda.so" \
    $tests/fake_driver.c -pthread
cp "$lib/.tranche/driver-libcuda.so" "$work/bare/libcuda.so.1"
compile -o "$work/probe" $tests/probe.c -ldl
compile -DPROBE_LINKED -o "$work/probe-linked" $tests/probe.c -L"$work/bare" -l:libcuda.so.1
# The linker warns that a static program which calls dlopen needs its own glibc at run time; that is the point here.
compile -DPROBE_STATIC -static -o "$work/probe-static" $tests/probe.c 2> >(grep -vE 'statically linked|in function' >&2)
# A library of a third party that needs libcuda.so.1, and is itself loaded late and privately.
compile -shared -fPIC -Dmain=third_party_main -DPROBE_LINKED -o "$work/libthird.so" $tests/probe.c -L"$work/bare" \
    -l:libcuda.so.1
compile -o "$work/probe-third" -x c - -ldl <<'C'
#include <dlfcn.h>
int main(int argc, char **argv) {
    void *third = dlopen(argv[argc - 1], RTLD_NOW | RTLD_LOCAL);
    int (*run)(void) = third ? (int (*)(void))dlsym(third, "third_party_main") : 0;
    return run ? run() : 3;
}
C
compile -o "$work/claim" $tests/make_claim.c $tests/fixture.c
"$work/claim" "$work/claims" 0123abcd GPU-01020304-0506-0708-090a-0b0c0d0e0f00 1000 100

export TRANCHE_REGIONS=$work/claims
export LD_LIBRARY_PATH=$lib
probe=$work/probe
run() { "$@" 2>"$work/stderr" || cat "$work/stderr" >&2; }

check "without the shadow, nothing holds" free "$(LD_LIBRARY_PATH=$work/bare PROBE_PRELOADED=1 "$probe" dlopen)"
check "dlopen, dlsym" held "$(run "$probe" dlopen)"
check "dlopen of libcuda.so" held "$(run "$probe" dlopen libcuda.so)"
check "dlopen by path" held "$(LD_LIBRARY_PATH='' run "$probe" dlopen "$lib/libcuda.so.1")"
check "dlopen by relative path" held "$(cd "$work" && LD_LIBRARY_PATH='' run "$probe" dlopen lib/libcuda.so.1)"
past=$lib/.tranche:$lib # a job that has the loader look where the driver's library lies first
check "LD_LIBRARY_PATH past the shadow" held "$(LD_LIBRARY_PATH=$past run "$probe" dlopen)"
check "LD_LIBRARY_PATH past the shadow, libcuda.so" held "$(LD_LIBRARY_PATH=$past run "$probe" dlopen libcuda.so)"
check "LD_LIBRARY_PATH past the shadow, linked" held "$(LD_LIBRARY_PATH=$past run "$work/probe-linked")"
check "LD_LIBRARY_PATH past the shadow, static" held "$(LD_LIBRARY_PATH=$past run "$work/probe-static" dlopen)"
check "RTLD_GLOBAL" held "$(run "$probe" global)"
check "RTLD_DEEPBIND" held "$(run "$probe" deepbind)"
check "dlmopen" held "$(run "$probe" dlmopen)"
check "dlclose and again" held "$(run "$probe" again)"
check "linked" held "$(run "$work/probe-linked")"
check "linked, an interposer before the driver" held "$(LD_PRELOAD=$work/libthird.so run "$work/probe-linked")"
check "static, dlopen" held "$(run "$work/probe-static" dlopen)"
check "a third party's dependency" held "$(run "$work/probe-third" "$work/libthird.so")"
check "cuGetProcAddress" held "$(run "$probe" procaddress)"
check "cuGetProcAddress_v2" held "$(run "$probe" procaddress_v2)"
check "closed descriptors" held "$(PROBE_CLOSES_ALL=1 run "$probe" descriptors)"
check "LD_PRELOAD" held \
    "$(LD_LIBRARY_PATH=$work/bare PROBE_PRELOADED=1 LD_PRELOAD=$lib/libcuda.so.1 run "$probe" dlopen)"
check "LD_PRELOAD, cuGetProcAddress" held \
    "$(LD_LIBRARY_PATH=$work/bare PROBE_PRELOADED=1 LD_PRELOAD=$lib/libcuda.so.1 run "$probe" procaddress_v2)"
check "an empty environment has no region, hence no GPU" error \
    "$(env -i LD_LIBRARY_PATH="$lib" "$probe" dlopen 2>"$work/stderr")"
check "and says so in one line" 1 "$(grep -c '^tranche: ' "$work/stderr")"
check "nothing on stdout but the probe's" held "$(run "$probe" dlopen)"

echo "$passed passed, $failed failed"
exit $((failed > 0))
