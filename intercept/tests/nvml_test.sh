#!/bin/bash
# Tests NVML under a claim, in front of the simulated GPU: it reports the claim's memory and the claim's processes, whatever other
# processes are on the GPU.
#
#   nvml_test.sh BUILD    (run from the repository's root; $CC compiles)
set -u -o pipefail

build=$1
tests=intercept/tests
cc=${CC:-gcc}
passed=0
failed=0

if [ ! -e "$build/sim/lib/libnvidia-ml.so.1" ] || [ -e /.tranche ]; then
    echo "no simulated GPU in $build/sim (make sim builds it), or a /.tranche that hides this test's claims" >&2
    exit 1
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/tranche-nvml-XXXXXX")
users=()
cleanup() {
    for user in "${users[@]}"; do
        kill -KILL "$user" 2>/dev/null
    done
    rm -rf "$work"
}
trap cleanup EXIT

compile() {
    "$cc" -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 -g "$@" || { echo "cannot compile: $*" >&2 && exit 1; }
}

expect() { # WHAT COMMAND...: the command succeeds and says nothing
    local said
    if said=$("${@:2}" 2>&1) && [ -z "$said" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf '%s:\n%s\n' "$1" "$said" >&2
    fi
}

same() { # WHAT EXPECTED GOT
    expect "$1: expected '$2', got '$3'" test "$2" = "$3"
}

# --- two GPUs, the first with a reserve of the driver's; claims of three on it, one of them with two ---

first=GPU-7e570000-0000-4000-8000-000000000000
second=GPU-7e570000-0000-4000-8000-000000000001
lib=$work/lib
mkdir -p "$work/dev" "$lib/.tranche" "$work/a" "$work/b" "$work/two"
touch "$work/dev/nvidiactl" "$work/dev/nvidia0" "$work/dev/nvidia1" "$work/dev/nvidia-uvm"
for library in libcuda.so.1 libnvidia-ml.so.1; do
    cp "$build/lib/$library" "$lib/"
    cp "$build/sim/lib/$library" "$lib/.tranche/driver-${library%.1}"
done
compile -o "$work/claim" $tests/make_claim.c $tests/fixture.c
compile -o "$work/user" $tests/nvml_user.c -L"$build/sim/lib" -l:libcuda.so.1
compile -o "$work/visible" $tests/visible.c -L"$build/sim/lib" -l:libcuda.so.1
compile -o "$work/check" $tests/nvml_check.c -L"$build/sim/lib" -l:libnvidia-ml.so.1
"$work/claim" "$work/a" 0000000a $first 512 64
"$work/claim" "$work/b" 0000000b $first 256 64
"$work/claim" "$work/two" 00000001 $first 128 64
"$work/claim" "$work/two" 00000002 $first 200 64
"$work/claim" "$work/two" 00000003 $second 128 96

export SIMGPU_TOPOLOGY=$work/topology
export SIMGPU_STATE=$work/state
export SIMGPU_DEV=$work/dev
export LD_LIBRARY_PATH=$lib
sed '/memory_mib = 1024/a reserved_mib = 128' e2e/simgpu/topologies/small.conf >"$work/topology"
"$build/sim/bin/simgpu" init || exit 1

under() { # CLAIMS COMMAND...
    env TRANCHE_REGIONS="$work/$1" "${@:2}"
}

start() { # CLAIMS MIB [busy]: starts a process on the first GPU; the last of users
    local line= out
    exec {out}< <(exec env TRANCHE_REGIONS="$work/$1" "$work/user" "${@:2}")
    users+=($!)
    read -r -t 20 line <&"$out"
    same "$* is ready" ready "$line"
}

end() { # PID
    kill -KILL "$1"
    wait "$1" 2>/dev/null
}

check() { # CLAIMS INDEX WHAT [ARGUMENT...]
    expect "$*" under "$1" "$work/check" "${@:2}"
}

# --- several processes, several claims ---

check a 0 processes
start a 100
start a 0
start b 10
a1=${users[0]} a2=${users[1]} b1=${users[2]}
check a 0 processes $a1=164 $a2=64
check b 0 processes $b1=74
check a 1 unclaimed
check two 0 processes
start two 100 # does not fit beside the context in the first claim, so it has a part in both
t1=${users[3]}
check two 0 processes $t1=164
start two 60
t2=${users[4]}
check two 0 processes $t1=164 $t2=124
check two 1 processes
check a 0 processes $a1=164 $a2=64

# --- what the driver knows of them ---

expect "accounting is turned on" under a "$work/check" 0 accounting
check a 0 accounts $a1=164 $a2=64 -$b1 -$t1
check b 0 accounts $b1=74 -$a1 -$t2
check two 0 accounts $t1=164 $t2=124
start a 20 busy
a3=${users[5]}
start b 20 busy
b2=${users[6]}
sleep 0.3
check a 0 busy $a3
check b 0 busy $b2
check two 0 busy
check two 1 busy

# --- nvidia-smi ---

smi=$(under a "$build/sim/bin/nvidia-smi")
used=312 # and perhaps what a kernel takes
grep -q 314MiB <<<"$smi" && used=314
same "nvidia-smi: memory" "${used}MiB / 512MiB" "$(grep -o '[0-9]*MiB / *[0-9]*MiB' <<<"$smi" | head -1)"
same "nvidia-smi: the other GPU's memory" "N/A / N/A" "$(grep -oE '([0-9]+MiB|N/A) / *([0-9]+MiB|N/A)' <<<"$smi" | tail -1)"
same "nvidia-smi: processes" "$(printf '%s\n' $a1 $a2 $a3 | sort -n)" \
    "$(sed -nE 's/^\| +[0-9]+ +N\/A +N\/A +([0-9]+) .*/\1/p' <<<"$smi" | sort -n)"
same "nvidia-smi: query" "512, 0, $used, $((512 - used))" \
    "$(under a "$build/sim/bin/nvidia-smi" --query-gpu=memory.total,memory.reserved,memory.used,memory.free \
        --format=csv,noheader,nounits | head -1)"

# --- one GPU of two, as under `tranche run` ---

export TRANCHE_VISIBLE_GPU=$second
check two 0 visible $second 00000000:02:00.0 $first 00000000:01:00.0
check two 0 processes
same "nvidia-smi: one GPU" "$second" "$(under two "$build/sim/bin/nvidia-smi" --query-gpu=uuid --format=csv,noheader)"
for list in - 0 00 0,1 0,7,x $second GPU-7e570000-0000-4000-8000-000000000001,0 ${second%1}; do
    same "CUDA: visible by $list" "01 $list" "$(under two "$work/visible" $list)"
done
for list in 1 -1 1,0 $first x MIG-0; do
    same "CUDA: nothing visible by $list" "error 100, 0 GPUs $list" "$(under two "$work/visible" $list)"
done
same "CUDA: nothing visible by an empty list" "error 100, 0 GPUs " "$(under two "$work/visible" "")"
expect "NVML before nvmlInit" under two "$work/check" 0 error 1
unset TRANCHE_VISIBLE_GPU
same "CUDA: all GPUs" "error 0, 2 GPUs -" "$(under two "$work/visible" -)"

# --- processes that were stopped, and killed ---

kill -STOP $a2
check a 0 processes $a1=164 $a2=64 $a3+84
end $a1
check a 0 processes $a2=64 $a3+84
check a 0 accounts $a2=64 $a3+84 -$a1 -$b2
end $a2
end $a3
check a 0 processes
check a 0 busy
check a 0 accounts
check b 0 processes $b1=74 $b2+84

# --- pid namespaces: a container sees its own processes by its own numbers ---

cat >"$work/inside" <<'S'
#!/bin/bash
# inside WORK CLAIMS: the first process of a pid namespace, and two of a claim, whose numbers others have too. Whose samples and
# accounts the driver has cannot be known: it may have those of the host's processes by their numbers there.
export TRANCHE_REGIONS=$1/$2
exec 3< <(exec "$1/user" 30 busy)
one=$!
read -r -t 20 line <&3 || echo "not ready"
exec 4< <(exec "$1/user" 40)
two=$!
read -r -t 20 line <&4 || echo "not ready"
sleep 0.3
echo "$one $two"
"$1/check" 0 processes "$one+94" "$two=104"
"$1/check" 0 accounts
"$1/check" 0 busy
kill -KILL "$two"
wait "$two" 2>/dev/null
"$1/check" 0 processes "$one+94"
kill -KILL "$one"
S
chmod +x "$work/inside"
contain() { # CLAIMS
    timeout -k 1 60 unshare --pid --fork --mount-proc --kill-child bash -c '"$@"' - "$work/inside" "$work" "$@" 2>&1 |
        grep -v Killed
}
if unshare --pid --fork --mount-proc true 2>/dev/null; then
    end $b1
    end $b2
    # Both in the same order of commands, hence with the same numbers.
    contain a >"$work/in-a" &
    contain b >"$work/in-b"
    wait $!
    same "a container's processes" 1 "$(wc -l <"$work/in-a")"
    same "two containers with the same numbers" "$(cat "$work/in-a")" "$(cat "$work/in-b")"

    # A driver that lists the host's numbers.
    sed -i 's/^driver_version = .*/driver_version = 525.60.13/' "$work/topology"
    start b 20 busy
    check b 0 busy ${users[-1]}
    same "a driver that gives the host's numbers" "$(cat "$work/in-a")" "$(contain a)"
else
    echo "skipped: pid namespaces, which need root" >&2
fi

# --- errors ---

expect "before nvmlInit" under a "$work/check" 0 error 1
TRANCHE_REGIONS=/nonexistent expect "without a region" bash -c "'$work/check' 0 error 17 2>/dev/null"

# --- slices of a MIG instance: two claims on one, and one on its neighbour ---

node=$work/node
instance=MIG-51d40f7e-0c1a-4e6b-9f3d-5a1e00000a01
neighbour=MIG-51d40f7e-0c1a-4e6b-9f3d-5a1e00000a02
mkdir "$work/c" "$work/d" "$work/e"
"$work/claim" "$work/c" 0000000c $instance 1024 300
"$work/claim" "$work/d" 0000000d $instance 2048 300
"$work/claim" "$work/e" 0000000e $neighbour 512 300
SIMGPU_TOPOLOGY=e2e/simgpu/topologies/h200-mig.conf "$build/sim/bin/simgpu" root "$node" || exit 1
export SIMGPU_TOPOLOGY=$node/run/simgpu/topology SIMGPU_STATE=$node/run/simgpu/state SIMGPU_DEV=$node/dev
export CUDA_VISIBLE_DEVICES=$instance
start c 100
start d 200
CUDA_VISIBLE_DEVICES=$neighbour start e 20
c1=${users[-3]} d1=${users[-2]} e1=${users[-1]}
check c 0.0 processes $c1=400
check d 0.0 processes $d1=500
check e 0.1 processes $e1=320
for claims in c d e; do # the GPU, and instances that no claim is on
    check $claims 0 unclaimed
    check $claims 1 unclaimed
done
check c 0.1 unclaimed
check e 0.0 unclaimed

instances() { # CLAIMS: what nvidia-smi says of the memory of the GPUs, and of their MIG devices
    under "$1" "$build/sim/bin/nvidia-smi" | grep -oE '([0-9]+MiB|N/A) / *([0-9]+MiB|N/A)' | tr '\n' ' '
}
same "nvidia-smi: slices of an instance" "N/A / N/A N/A / N/A 400MiB / 1024MiB N/A / N/A " "$(instances c)"
same "nvidia-smi: the other claim on it" "N/A / N/A N/A / N/A 500MiB / 2048MiB N/A / N/A " "$(instances d)"
same "nvidia-smi: the neighbour" "N/A / N/A N/A / N/A N/A / N/A 320MiB / 512MiB " "$(instances e)"
unset CUDA_VISIBLE_DEVICES
export TRANCHE_VISIBLE_GPU=$neighbour # as `tranche run` sets it
same "CUDA: the only MIG device" "02 -" "$(under e "$work/visible")"
check e 0 visible GPU-51d40f7e-0c1a-4e6b-9f3d-5a1e00000000 00000000:19:00.0 GPU-51d40f7e-0c1a-4e6b-9f3d-5a1e00000001 $instance
check e 0 visible-mig $neighbour
check e 0.0 processes $e1=320
check e 0 unclaimed
unset TRANCHE_VISIBLE_GPU
export SIMGPU_TOPOLOGY=$work/topology SIMGPU_STATE=$work/state SIMGPU_DEV=$work/dev

# --- what the simulated GPU does not have: attributes of MIG devices, graphics, MPS, confidential computing; a function that is not there ---

mig=$work/mig
mkdir -p "$mig/.tranche"
cp "$build/lib/libnvidia-ml.so.1" "$mig/"
# -Bsymbolic, as the driver's: its own calls are not the shadow's to answer.
compile -shared -fPIC -Wl,-Bsymbolic -o "$mig/.tranche/driver-libnvidia-ml.so" $tests/fake_nvml.c
compile -DFAKE_NVML_PROBE -o "$work/probe" $tests/fake_nvml.c -L"$build/sim/lib" -l:libnvidia-ml.so.1
start a 32
start a 0
u1=${users[-2]} u2=${users[-1]}
strangers=$(seq -s, 100001 100100)
same "a MIG device" "compute 0: $u1=96 in 3.1 $u2=64 in 3.1
graphics 0: $u2=64
mps 0: $u2=64 in 3.1
compute details 0: $u1=96 in 3.1 $u2=64 in 3.1
mps details 0: $u2=64 in 3.1
attributes 0: 512
first attributes 0: 512
protected 0: 400 112
mostly protected 0: 512 0
protected in use 0: 160 of 512
memory 13" "$(FAKE_NVML_PIDS=$strangers,$u2,1 LD_LIBRARY_PATH=$mig under a "$work/probe")"

# --- the driver behind it ---

same "the simulated driver calls its own functions" 1 \
    "$(readelf -dW "$build/sim/lib/libnvidia-ml.so.1" | grep -c '(SYMBOLIC)')"

echo "nvml: $passed passed, $failed failed"
exit $((failed > 0))
