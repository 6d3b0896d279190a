#!/bin/bash
# Tests the shadow libraries from outside: their symbols, and every way in which a program loads the driver. The table in
# docs/devices.md says what each way gets, in a container and under `tranche run`. The test tries both layouts, in front of the
# simulated GPU, and checks the simulator's record of physical memory. Each row of the table has a test of its name here, and
# each test has a row.
#
#   loader_test.sh BUILD    (run from the repository's root, as root; $CC compiles)
set -u -o pipefail

build=$1
tests=intercept/tests
doc=docs/devices.md
cc=${CC:-gcc}
. intercept/tests/checks.sh

finish() {
    echo "loader: $passed passed, $failed failed"
    exit $((failed > 0 || passed == 0))
}

compile() {
    "$cc" -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 -g "$@" || { echo "cannot compile: $*" >&2 && exit 1; }
}

# Mounts are made in a namespace of this script's own, so nothing is left of them whatever happens.
if [ "${2:-}" != in-namespace ]; then
    work=$(mktemp -d "${TMPDIR:-/tmp}/tranche-loader-XXXXXX")
    trap 'rm -rf "$work"' EXIT
    if ! unshare --mount true 2>/dev/null; then
        echo "loader: this needs root and a mount namespace" >&2
        exit 1
    fi
    unshare --mount --propagation private "$0" "$build" in-namespace "$work"
    exit
fi
work=$3

# --- the files ---

# Launches are the driver's own, but of the builds with turns, which start the thread that joins the governor.
compile -o "$work/exports" -Iintercept $tests/exports.c
compile -o "$work/exports-governed" -Iintercept -DTRANCHE_GOVERNED $tests/exports.c
compile -o "$work/exports-compute" -Iintercept -DTRANCHE_GOVERNED -DTRANCHE_COMPUTE_ONLY $tests/exports.c
for library in libcuda.so.1 libnvidia-ml.so.1 governed/libcuda.so.1 compute/libcuda.so.1; do
    file=$build/lib/$library
    soname=${library##*/}
    kind=${library%"$soname"} kind=${kind%/}
    threads=pthread_create
    [ -n "$kind" ] && threads=no_other
    check "$library exports the table and nothing else" "$("$work/exports${kind:+-$kind}" "$soname" | sort)" \
        "$(nm -D --defined-only --format=posix "$file" | cut -d' ' -f1 | sort)"
    dynamic=$(readelf -dW "$file")
    check "$library: first dependency" "\$ORIGIN/.tranche/driver-${soname%.1}" \
        "$(sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' <<<"$dynamic" | head -1)"
    check "$library: name" "$soname" "$(sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p' <<<"$dynamic")"
    check "$library: is never unloaded" 1 "$(grep -c NODELETE <<<"$dynamic")"
    # Also what is no plain version, such as GLIBC_ABI_DT_RELR, which only newer loaders know.
    check "$library: runs with glibc 2.17" "" \
        "$(readelf -VW "$file" | grep -o 'Name: [A-Z][A-Za-z_0-9.]*' | cut -d' ' -f2 | sort -u | while read -r version; do
            printf '%s\n' GLIBC_2.17 "$version" | sort -VC -r || echo "$version"
        done)"
    check "$library: has no thread-local variables but of a kind that static programs can load" "" \
        "$(readelf -rW "$file" | grep -oE 'DTPMOD64|TLS_DTPMOD' | sort -u)"
    check "$library: starts no thread, sets no signal handler, ends no process" "" \
        "$(nm -D --undefined-only "$file" | grep -E "$threads|thrd_create|clone|signal|abort|assert|exit\$|printf\$" |
            grep -vE 'v?snprintf' | awk '{print $2}')"
done

# What the build with turns alone neither defines nor contains.
check "compute/libcuda.so.1 defines no function of memory" "" \
    "$(nm -D --defined-only --format=posix "$build/lib/compute/libcuda.so.1" | cut -d' ' -f1 |
        grep -E 'Alloc|Free|MemGetInfo|TotalMem|Pool|MemCreate|MemMap|Memory|Mipmap|Array|Module|Library|Kernel[A-Z].*Function|Ipc|Import|Export|Multicast|Prefetch|Advise|GraphInst|Limit|Checkpoint')"
check "compute/libcuda.so.1 contains no accounting" "" \
    "$(nm --defined-only --format=posix "$build/lib/compute/libcuda.so.1" | cut -d' ' -f1 |
        grep -E '^(region_(open|join|look|reserve)$|(charge|allocations|objects|pools|physical|streams|context)_)')"

# The cost of a launch that could wait, while its claim is alone. ud2 is behind the last one.
for launch in governed:cuLaunchKernel compute:cuLaunchKernel compute:cuGraphLaunch; do
    [ "$(uname -m)" = x86_64 ] || continue
    check "instructions of a launch, $launch" "cmpl jne jmp" \
        "$(objdump -d --no-show-raw-insn --disassemble=${launch#*:} "$build/lib/${launch%:*}/libcuda.so.1" |
            sed -n 's/^ *[0-9a-f]*:\t\([a-z0-9]*\).*/\1/p' | grep -v ud2 | tr '\n' ' ' | sed 's/ $//')"
done

if [ ! -e "$build/sim/lib/libcuda.so.1" ]; then
    echo "loader: skipped: there is no simulated GPU in $build/sim" >&2
    finish
fi

# --- two layouts: a container's, and that of a host with `tranche run` ---

limit_mib=512
claim=0123abcd
gpu=GPU-7e570000-0000-4000-8000-000000000000
version=$(sed -n 's/^driver_version *= *//p' e2e/simgpu/topologies/small.conf)
driver=$build/sim/lib/libcuda.so.1
lib=/usr/local/nvidia/lib64 # where the driver's libraries lie, for all programs
compat=/usr/local/cuda/compat
behind=/.tranche/c/0000 # where the driver lies behind its shadow in a container
copies=/.tranche/c/0001 # and where the copy in $compat does
run=/run/tranche/run/0
container=$work/container
host=$work/host

# A root of its own: the machine's programs and C library, and otherwise only what is made here.
make_root() { # ROOT
    mkdir -p "$1"
    mount -t tmpfs -o mode=755 tmpfs "$1"
    mkdir -p "$1"/{usr,etc,proc,dev,run/simgpu,tmp,image}
    local path
    for path in /bin /sbin /lib /lib32 /lib64 /libx32; do
        if [ -L $path ]; then
            cp -P $path "$1/"
        elif [ -d $path ]; then
            mkdir "$1$path"
            mount --rbind $path "$1$path"
        fi
    done
    mount --rbind /usr "$1/usr"
    mount --rbind /proc "$1/proc"
    mount -t tmpfs tmpfs "$1/usr/local"
    mkdir -p "$1$lib" "$1$compat"
    touch "$1"/dev/{nvidiactl,nvidia0,nvidia1,nvidia-uvm,null}
    mount --bind /dev/null "$1/dev/null"
    cp e2e/simgpu/topologies/small.conf "$1/run/simgpu/topology"
    mount --bind "$work/image" "$1/image"
    # Debian's default path is only in its configuration.
    { echo $lib && cat /etc/ld.so.conf.d/*-linux-gnu*.conf 2>/dev/null; } >"$1/etc/ld.so.conf"
}

bind() { # SOURCE DESTINATION [ro]: over a file, made where it does not exist
    [ -e "$2" ] || touch "$2"
    mount --bind "$1" "$2"
    if [ "${3:-}" = ro ]; then
        mount -o remount,bind,ro "$2"
    fi
}

# As runtime/ edits a container's spec, and hooks/drivercopies mounts the shadows.
make_container() {
    make_root "$container"
    bind "$driver" "$container$lib/libcuda.so.$version" ro
    ln -s "libcuda.so.$version" "$container$lib/libcuda.so.1"
    ln -s libcuda.so.1 "$container$lib/libcuda.so"
    chroot "$container" ldconfig
    mkdir "$container/.tranche"
    mount -t tmpfs -o mode=755 tmpfs "$container/.tranche"
    mkdir -p "$container/.tranche/claims/$claim" "$container$behind" "$container$copies"
    touch "$container$behind/driver-libcuda.so" "$container$copies/driver-libcuda.so"
    cover "$container$lib/libcuda.so.$version" $behind
    bind "$work/container-regions/$claim" "$container/.tranche/claims/$claim" ro
    bind "$work/container-regions/$claim/usage" "$container/.tranche/claims/$claim/usage"
    mount -o remount,ro "$container/.tranche"
    container_environment=(LD_LIBRARY_PATH=$lib) # as images for CUDA have it
    container_behind=$behind
}

# As hooks/drivercopies shadows a driver library that it finds in a container.
cover() { # FILE DIRECTORY
    local covering=$work/covering-${2##*/}
    bind "$1" "$container$2/driver-libcuda.so" ro
    LC_ALL=C sed "s|\$ORIGIN/.tranche/driver-libcuda.so|$2/driver-libcuda.so|" "$build/lib/libcuda.so.1" >"$covering"
    check "$covering is as long as the shadow" "$(stat -c %s "$build/lib/libcuda.so.1")" "$(stat -c %s "$covering")"
    bind "$covering" "$1" ro
}

# As internal/cli makes a command's private directory.
make_host() {
    make_root "$host"
    bind "$driver" "$host$lib/libcuda.so.$version" ro
    ln -s "libcuda.so.$version" "$host$lib/libcuda.so.1"
    ln -s libcuda.so.1 "$host$lib/libcuda.so"
    chroot "$host" ldconfig
    mkdir -p "$host$run/lib/.tranche" "$host/shadow"
    bind "$build/lib/libcuda.so.1" "$host/shadow/libcuda.so.1" ro
    ln -s $lib/libcuda.so."$version" "$host$run/lib/.tranche/driver-libcuda.so"
    local name
    for name in libcuda.so.1 libcuda.so "libcuda.so.$version"; do
        ln -s /shadow/libcuda.so.1 "$host$run/lib/$name"
    done
    cp -r "$work/host-regions" "$host$run/regions"
    host_environment=(LD_PRELOAD=$run/lib/libcuda.so.1 LD_LIBRARY_PATH=$run/lib TRANCHE_REGIONS=$run/regions
        CUDA_VISIBLE_DEVICES=$gpu)
    host_behind=$run/lib/.tranche
}

# A program as it was built when glibc 2.17 or an older one was new: its symbols have the first version that the architecture
# had, and dlopen comes from libdl.so.2. Such a C library is only pretended for the linker, from the program's own needs.
compile_old() { # OUTPUT DEFINITION [LIBRARY]
    local stub=$work/stub oldest=GLIBC_2.2.5 symbol
    [ "$(uname -m)" = aarch64 ] && oldest=GLIBC_2.17
    rm -rf "$stub" && mkdir "$stub"
    # Without _GNU_SOURCE, which has new C libraries put the newest functions under old names.
    "$cc" -std=c11 -D_DEFAULT_SOURCE "$2" -O1 -fno-pie -fno-stack-protector -U_FORTIFY_SOURCE -c \
        -o "$stub/probe.o" $tests/loader_probe.c || exit 1
    for symbol in __libc_start_main $(nm -u --format=posix "$stub/probe.o" | cut -d' ' -f1); do
        case $symbol in
        stderr) echo 'void *stderr;' >>"$stub/c.c" ;;
        dl*) echo "void $symbol(void) {}" >>"$stub/dl.c" ;;
        cu* | _GLOBAL_OFFSET_TABLE_) ;;
        *) echo "void $symbol(void) {}" >>"$stub/c.c" ;;
        esac
    done
    touch "$stub/dl.c"
    echo "$oldest { *; };" >"$stub/version"
    "$cc" -w -fno-builtin -shared -nostdlib -fPIC -Wl,--version-script="$stub/version" -Wl,-soname,libc.so.6 \
        -o "$stub/libc.so" "$stub/c.c" &&
        "$cc" -w -fno-builtin -shared -nostdlib -fPIC -Wl,--version-script="$stub/version" -Wl,-soname,libdl.so.2 \
            -o "$stub/libdl.so" "$stub/dl.c" &&
        "$cc" -no-pie -nostdlib -Wl,--no-as-needed -Wl,--allow-shlib-undefined -o "$1" \
            "$("$cc" -print-file-name=crt1.o)" "$stub/probe.o" ${3:+"$3"} "$stub/libc.so" "$stub/libdl.so" || exit 1
    check "$1 is old" $oldest "$(readelf -VW "$1" | grep -o 'Name: GLIBC[A-Za-z_0-9.]*' | cut -d' ' -f2 | sort -u)"
}

# What a job brings along.
make_image() {
    local image=$work/image
    mkdir "$image" "$image/copy" "$image/forged"
    cp "$driver" "$image/copy/"
    compile -o "$image/probe" $tests/loader_probe.c -ldl
    compile -DPROBE_LINKED -o "$image/linked" $tests/loader_probe.c "$driver"
    compile -DPROBE_LINKED -DPROBE_SECURE -o "$image/secure" $tests/loader_probe.c "$driver"
    compile -DPROBE_LINKED -o "$image/copied" $tests/loader_probe.c "$driver" -Wl,--disable-new-dtags \
        -Wl,-rpath,'$ORIGIN/copy'
    # The linker warns that a static program which calls dlopen needs its own glibc at run time; that is the point here.
    compile -DPROBE_STATIC -static -o "$image/static" $tests/loader_probe.c \
        2> >(grep -vE 'statically linked|in function' >&2)
    compile_old "$image/old" -DPROBE_STATIC
    compile_old "$image/old-linked" -DPROBE_LINKED "$driver"
    compile -shared -fPIC -DLIBRARY_PLAIN -o "$image/libplain.so" $tests/loader_library.c
    compile -shared -fPIC -DLIBRARY_NEXT -o "$image/libnext.so" $tests/loader_library.c -ldl
    compile -shared -fPIC -DLIBRARY_AUDIT -o "$image/libaudit.so" $tests/loader_library.c
    compile -shared -fPIC -DLIBRARY_REDIRECT="\"/image/copy/libcuda.so.1\"" -o "$image/libredirect.so" \
        $tests/loader_library.c
    # A program whose libraries are libcuda.so.1 and then the one that asks for the next definition after its own.
    compile -o "$image/behind" $tests/loader_probe.c -Wl,--no-as-needed "$driver" -L"$image" -lnext \
        -Wl,-rpath,'$ORIGIN' -ldl
    # A program that has a library with a function of the driver's between the shadow and the driver.
    echo 'int cuInit(unsigned int flags) { return flags == 0 ? 999 : 998; }' |
        compile -shared -fPIC -o "$image/libbetween.so" -x c -
    compile -DPROBE_LINKED -o "$image/between" $tests/loader_probe.c -Wl,--no-as-needed "$driver" -L"$image" -lbetween \
        -Wl,-rpath,'$ORIGIN'
    # A library of a third party that needs libcuda.so.1, and is itself loaded late and privately.
    compile -shared -fPIC -Dmain=third_party_main -DPROBE_LINKED -o "$image/libthird.so" $tests/loader_probe.c "$driver"
    compile -o "$image/third" -x c - -ldl <<'C'
#include <dlfcn.h>
int main(int argc, char **argv) {
    void *third = dlopen(argv[argc - 1], RTLD_NOW | RTLD_LOCAL);
    int (*run)(void) = third ? (int (*)(void))dlsym(third, "third_party_main") : 0;
    return run ? run() : 3;
}
C
    compile -o "$image/abandon" $tests/loader_abandon.c "$driver"
    "$work/claim" "$image/forged" $claim $gpu 1000 64
}

compile -o "$work/claim" $tests/make_claim.c $tests/fixture.c
mkdir "$work/container-regions" "$work/host-regions"
for regions in container-regions host-regions; do
    "$work/claim" "$work/$regions" $claim $gpu $limit_mib 64
done
make_image
make_container
make_host

# --- the table ---

rows=() # the tests that have been run

expected() { # TEST LAYOUT: what the table says
    local column=4
    [ "$2" = host ] && column=5
    awk -F'|' -v test="\`$1\`" -v column=$column '
        NF == 6 && $3 ~ "^ *" test " *$" { gsub(/^ +| +$/, "", $column); print $column }' $doc
}

simgpu() { # ROOT ARGUMENT...
    SIMGPU_TOPOLOGY=$1/run/simgpu/topology SIMGPU_STATE=$1/run/simgpu/state SIMGPU_DEV=$1/dev \
        "$build/sim/bin/simgpu" "${@:2}"
}

# What the record says of the last command: bytes of GPU memory that its processes held at most.
peak() { # ROOT
    simgpu "$1" record --json | grep -oE '"peak_bytes" *: *[0-9]+' | grep -oE '[0-9]+$' | sort -n | tail -1
}

try() { # LAYOUT COMMAND...: prints what the command got, in the table's words
    local layout=$1 root=${!1} bytes word
    shift
    local -n environment=${layout}_environment behind=${layout}_behind
    simgpu "$root" init || return
    word=$(env -i "${environment[@]}" "$(command -v chroot)" "$root" "${@//BEHIND/$behind}" 2>"$work/stderr")
    bytes=$(peak "$root")
    case $word,$((${bytes:-0} > limit_mib << 20)),$((${bytes:-0} > 0)) in
    shadow,0,1) echo shadow ;;
    refused,0,0) echo refused ;;
    past,1,1) echo gets past ;;
    *) echo "\"$word\" with ${bytes:-0} bytes at most" ;;
    esac
}

row() { # TEST COMMAND...: in the command, BEHIND is the directory in which the driver lies behind the shadow
    local layout
    rows+=("$1")
    for layout in container host; do
        check "$1, $layout" "$(expected "$1" $layout)" "$(try $layout "${@:2}")"
    done
}

probe=/image/probe

# the names and the ways of the loader
row linked /image/linked
row dlopen $probe lazy dlsym libcuda.so.1
row dlopen-unversioned $probe lazy dlsym libcuda.so
row dlopen-driver-version $probe lazy dlsym "libcuda.so.$version"
row dlopen-path $probe lazy dlsym $lib/libcuda.so.1
row dlopen-driver-version-path $probe lazy dlsym "$lib/libcuda.so.$version"
row dlopen-relative-path env --chdir=$lib $probe lazy dlsym ./libcuda.so.1
row dlopen-global $probe global dlsym libcuda.so.1
row dlopen-deepbind $probe deepbind dlsym libcuda.so.1
row dlopen-again $probe again dlsym libcuda.so.1
row dlmopen $probe dlmopen dlsym libcuda.so.1
row static-dlopen /image/static lazy dlsym libcuda.so.1
row third-party /image/third /image/libthird.so
row old-linked /image/old-linked
row old-dlopen /image/old lazy dlsym libcuda.so.1
# Not in /image: the file system of that may ignore the bit.
for root in "$container" "$host"; do
    cp "$work/image/secure" "$root/secure" && chmod u+s "$root/secure"
done
row set-user-id setpriv --reuid=1000 --regid=1000 --clear-groups /secure
# the environment
row environment-cleared env -i $probe lazy dlsym libcuda.so.1
row preload-unset env -u LD_PRELOAD $probe lazy dlsym libcuda.so.1
row preload-unset-unversioned env -u LD_PRELOAD $probe lazy dlsym libcuda.so
row preload-other env LD_PRELOAD=/image/libplain.so $probe lazy dlsym libcuda.so.1
row preload-third-party env LD_PRELOAD=/image/libthird.so /image/linked
row library-path-unset env -u LD_LIBRARY_PATH $probe lazy dlsym libcuda.so.1
row library-path-behind env LD_LIBRARY_PATH=BEHIND $probe lazy dlsym libcuda.so.1
row library-path-behind-linked env LD_LIBRARY_PATH=BEHIND /image/linked
row library-path-behind-static env LD_LIBRARY_PATH=BEHIND /image/static lazy dlsym libcuda.so.1
row audit env LD_AUDIT=/image/libaudit.so $probe lazy dlsym libcuda.so.1
row audit-redirect env LD_AUDIT=/image/libredirect.so $probe lazy dlsym libcuda.so.1
# looking functions up
row dlsym-default $probe default dlsym libcuda.so.1
row dlsym-next $probe next dlsym libcuda.so.1
row dlsym-next-behind /image/behind default behind
row dlvsym $probe lazy dlvsym libcuda.so.1
row procaddress $probe lazy address libcuda.so.1
row procaddress-v2 $probe lazy address-v2 libcuda.so.1
row procaddress-every $probe lazy every-address libcuda.so.1
row link-map $probe link-map dlsym libcuda.so.1
# the driver's own file
row driver-file $probe lazy dlsym BEHIND/driver-libcuda.so
row driver-file-name env LD_LIBRARY_PATH=BEHIND $probe lazy dlsym driver-libcuda.so
row driver-file-preload env LD_PRELOAD=BEHIND/driver-libcuda.so $probe lazy dlsym libcuda.so.1
# a copy of it
row copy-path $probe lazy dlsym /image/copy/libcuda.so.1
row copy-library-path env LD_LIBRARY_PATH=/image/copy $probe lazy dlsym libcuda.so.1
row copy-rpath /image/copied
row copy-preload env LD_PRELOAD=/image/copy/libcuda.so.1 $probe lazy dlsym libcuda.so.1
for root in "$container" "$host"; do
    cp "$driver" "$root$compat/libcuda.so.1"
done
cover "$container$compat/libcuda.so.1" $copies
row compat-path $probe lazy dlsym $compat/libcuda.so.1
row compat-library-path env LD_LIBRARY_PATH=$compat $probe lazy dlsym libcuda.so.1
for folder in $lib $compat; do
    check "the shadow in $folder asks the driver behind it, not who is between" shadow \
        "$(try container env LD_LIBRARY_PATH=$folder /image/between)"
done
for root in "$container" "$host"; do
    sed -i "1i $compat" "$root/etc/ld.so.conf"
    chroot "$root" ldconfig
done
row compat-cache env -u LD_LIBRARY_PATH $probe lazy dlsym libcuda.so.1
umount "$container$compat/libcuda.so.1"
for root in "$container" "$host"; do
    rm "$root$compat/libcuda.so.1"
    chroot "$root" ldconfig
done
# the region
row region-none env -u TRANCHE_REGIONS $probe lazy dlsym libcuda.so.1
row region-variable env TRANCHE_REGIONS=/image/forged $probe lazy dlsym libcuda.so.1
claims="/.tranche/claims $run/regions" # of which each layout has one
row region-mounted-over unshare --mount sh -c "for c in $claims; do [ ! -d \$c ] || mount --bind /image/forged \$c; done
    exec $probe lazy dlsym libcuda.so.1"

row region-abandoned /image/abandon

check "every row of the table has a test, and every test a row" \
    "$(awk -F'|' 'NF == 6 && $3 ~ /^ *`[a-z0-9-]+` *$/ { gsub(/[ `]/, "", $3); print $3 }' $doc | sort)" \
    "$(printf '%s\n' "${rows[@]}" | sort)"
finish
