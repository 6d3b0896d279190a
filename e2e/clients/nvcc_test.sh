#!/bin/bash
# Program images of NVIDIA's nvcc 11.8 and 12.4 on the simulated GPU, bare and under a claim: PTX, cubins, fat binaries for
# several architectures, compressed and not, and relocatable device code. The simulated driver finds in them what nvcc put
# there, and the claim counts no less than they take.
#
#   nvcc_test.sh BUILD    (run from the repository's root, as root; $CC compiles)
set -u -o pipefail

build=$1
scripts/nvcc-root "$build/clients/nvcc-11.8" "$build/nvidia/cuda-11.8" bookworm g++-11 || exit 1
scripts/nvcc-root "$build/clients/nvcc-12.4" "$build/nvidia/cuda-12.4" trixie g++-13 || exit 1
. e2e/clients/node.sh
cp e2e/cudart/images/kernels.cu "$node/"
${CC:-gcc} -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 -I e2e/simgpu/include -o "$node/load" e2e/cudart/images/load.c \
    -L"$build/sim/lib" -l:libcuda.so.1

several=(-gencode "arch=compute_80,code=sm_80" -gencode "arch=compute_90,code=sm_90" -gencode "arch=compute_90,code=compute_90")

compile() { # VERSION NAME OPTION...: the image is $node/NAME
    local compiler=g++-11
    [ "$1" = 11.8 ] || compiler=g++-13
    root=$build/clients/nvcc-$1 in_root bare nvcc nvcc -w -ccbin $compiler "${@:3}" -o "/gpu/$2" /gpu/kernels.cu >"$node/said" 2>&1
    check "nvcc $1: $2" "0 " "$? $(cat "$node/said")"
}

load() { # DRIVER LABEL HOW IMAGE
    SIMGPU_TOPOLOGY=$node/topology SIMGPU_STATE=$node/state SIMGPU_DEV=$node/dev SIMGPU_LABEL=$2 TRANCHE_REGIONS=$node/claim \
        LD_LIBRARY_PATH=$node/$1 "$node/load" "$3" "$node/$4" 2>&1
}

found="kernel small 0
kernel large 0
kernel none 500
variable plain 0 4194304
variable initialised 0 4096
variable constant 0 4096
variable managed 0 1048576
variable none 500 0"

check_image() { # HOW IMAGE: as on the bare GPU, and counted for all that it takes and at most two blocks more
    local driver i more=4
    for driver in bare shadow; do
        load $driver "$driver-$1-$2" "$1" "$2" >"$node/$driver.out"
        check "$1 $2, $driver: ends" 0 $?
        check "$1 $2, $driver: what is in it" "$found" "$(grep -v '^used' "$node/$driver.out")"
    done
    mapfile -t bare < <(sed -n 's/^used //p' "$node/bare.out")
    mapfile -t shadow < <(sed -n 's/^used //p' "$node/shadow.out")
    check "$1 $2: it was looked at three times" "3 3" "${#bare[@]} ${#shadow[@]}"
    for i in 1 2; do
        check_at_most "$1 $2: what it takes is counted, $i" "${shadow[i]:-0}" "${bare[i]:-}"
        check_at_most "$1 $2: little more is counted, $i" $((${bare[i]:-0} + more)) "${shadow[i]:-}"
    done
    check "$1 $2: takes more than the context" 1 "$((${bare[1]:-0} > 64 + 4))"
    check "$1 $2: nothing stays" 0 "$(record "shadow-$1-$2" bytes)"
}

for version in 11.8 12.4; do
    compile $version $version.ptx --ptx -arch compute_90
    compile $version $version.cubin --cubin -arch sm_90
    compile $version $version-one.fatbin --fatbin -arch sm_90
    compile $version $version-several.fatbin --fatbin "${several[@]}"
    compile $version $version-compressed.fatbin --fatbin -Xfatbin -compress-all "${several[@]}"
    compile $version $version-plain.fatbin --fatbin -no-compress "${several[@]}"
    compile $version $version-ptx.fatbin --fatbin -gencode arch=compute_90,code=compute_90
    compile $version $version-relocatable.fatbin --fatbin -rdc=true "${several[@]}"
    check "nvcc $version compresses" 1 \
        "$(($(stat -c %s "$node/$version-plain.fatbin") * 2 > $(stat -c %s "$node/$version-compressed.fatbin") * 3))"
    for image in ptx cubin; do
        check_image data $version.$image
    done
    for how in data library; do
        for image in compressed plain ptx one several; do
            check_image $how $version-$image.fatbin
        done
    done
    check_image link $version-relocatable.fatbin
done

finish
