#!/bin/bash
# Compares the simulated MPS control daemon with NVIDIA's, as far as that runs without a GPU: its files before, while and after
# it runs, the lock, and what its commands say. One difference that mps.txt does not list, or a listed one that is gone, fails.
#
#   mps_test.sh BUILD    (run from the repository's root)
#
# Lines of mps.txt, whose words may end with * for all that begin so:
#   DRIVER WHAT REAL OURS    lines with | between them, words with _; "-" for nothing
set -eu -o pipefail
export LC_ALL=C

build=$(cd "$1" && pwd)
list=e2e/cudart/mps.txt
nvidia=$build/nvidia
scripts/nvidia-packages "$nvidia/470" bullseye libcuda1 nvidia-cuda-mps
scripts/nvidia-packages "$nvidia/535" bookworm libcuda1 nvidia-cuda-mps
scripts/nvidia-packages "$nvidia/550" trixie libcuda1 nvidia-cuda-mps

work=$(mktemp -d "${TMPDIR:-/tmp}/tranche-mps-XXXXXX")
daemon=
cleanup() {
    [ -z "$daemon" ] || kill -KILL "$daemon" 2>/dev/null || :
    rm -rf "$work"
}
trap cleanup EXIT
umask 022
mkdir "$work/dev"
touch "$work/dev/nvidiactl" "$work/dev/nvidia0" "$work/dev/nvidia1" "$work/dev/nvidia-uvm"
export SIMGPU_DEV=$work/dev SIMGPU_STATE=$work/state SIMGPU_TOPOLOGY=$PWD/e2e/simgpu/topologies/small.conf
"$build/sim/bin/simgpu" init

commands=(
    get_server_list get_server_status "get_server_status 1" "get_client_list 1" get_device_client_list "shutdown_server 1"
    ps "ps -p 1" "terminate_client 1 2" bogus
    get_default_active_thread_percentage "set_default_active_thread_percentage 50" get_default_active_thread_percentage
    "set_default_active_thread_percentage 200" "set_default_active_thread_percentage 0"
    "set_default_active_thread_percentage most" get_default_active_thread_percentage
    "set_default_active_thread_percentage 33.25" "get_active_thread_percentage 1" "set_active_thread_percentage 1 50"
    "get_default_device_pinned_mem_limit 0" "set_default_device_pinned_mem_limit 0 1G"
    "get_default_device_pinned_mem_limit 0" "set_default_device_pinned_mem_limit 0 1536M"
    "get_default_device_pinned_mem_limit 0" "get_device_pinned_mem_limit 1 0" "set_device_pinned_mem_limit 1 0 1G"
    "set_default_device_pinned_mem_limit 0 512M" "get_default_device_pinned_mem_limit 0"
)

wait_for() { # FILE
    for _ in $(seq 600); do
        [ -e "$1" ] && return
        sleep 0.1
    done
    echo "mps: $1 does not appear" >&2
    return 1
}

one_word() { # standard input; "-" for none
    local word
    word=$(tr ' \n' '_|' | sed 's/__*/_/g; s/|$//')
    echo "${word:--}"
}

say() { # WHAT, and standard input
    printf '%s %s\n' "$(one_word <<<"$1")" "$(one_word)"
}

files() { # WHAT
    (cd "$CUDA_MPS_PIPE_DIRECTORY" && for file in *; do [ ! -e "$file" ] || stat -c '%A %n' "$file"; done) >"$work/files"
    # A word each, so that a difference names its file.
    while read -r mode name; do
        echo "$1/$name $mode"
    done <"$work/files"
    echo "$1/log $(find "$CUDA_MPS_LOG_DIRECTORY" -type f -printf '%f\n' | one_word)"
}

transcript() { # CONTROL
    local command status number=0 pid
    export CUDA_MPS_PIPE_DIRECTORY=$work/pipe CUDA_MPS_LOG_DIRECTORY=$work/log
    rm -rf "$work/pipe" "$work/log"
    mkdir "$work/pipe" "$work/log"
    status=0
    "$1" <<<get_server_list >"$work/said" 2>&1 || status=$?
    say "before: command, status $status" <"$work/said"
    "$1" -f >"$work/foreground" 2>&1 &
    daemon=$!
    wait_for "$work/pipe/control"
    # Once it answers, all is there.
    "$1" <<<get_server_list >/dev/null
    files running
    pid=$(cat "$work/pipe/nvidia-cuda-mps-control.pid" 2>/dev/null || :)
    say "running: its PID is in the file" <<<"$([ "$pid" = $daemon ] && echo yes || echo no)"
    for command in "${commands[@]}"; do
        status=0
        "$1" <<<"$command" >"$work/said" 2>&1 || status=$?
        number=$((number + 1))
        say "$(printf '%02d' $number): $command, status $status" <"$work/said"
    done
    for command in -f -d; do
        status=0
        "$1" $command >"$work/said" 2>&1 || status=$?
        say "a second one: $command, status $status" <"$work/said"
    done
    status=0
    "$1" <<<quit >"$work/said" 2>&1 || status=$?
    say "quit, status $status" <"$work/said"
    status=0
    wait $daemon || status=$?
    daemon=
    say "its status" <<<$status
    files ended
    status=0
    "$1" <<<get_server_list >"$work/said" 2>&1 || status=$?
    say "after: command, status $status" <"$work/said"
}

transcript "$build/sim/bin/nvidia-cuda-mps-control" >"$work/ours"
for driver in 470 535 550; do
    directory=$(echo "$nvidia/$driver"/usr/lib/*/nvidia/current)
    (export LD_LIBRARY_PATH=$directory && transcript "$nvidia/$driver/usr/bin/nvidia-cuda-mps-control") >"$work/real-$driver"
    # What each says of one thing, "none" where the other alone knows of it.
    awk -v driver=$driver 'NR == FNR { real[$1] = $2; next } { ours[$1] = $2 }
        END {
            for (what in real) if (!(what in ours)) ours[what] = "none"
            for (what in ours) {
                if (!(what in real)) real[what] = "none"
                if (real[what] != ours[what]) print driver, what, real[what], ours[what]
            }
        }' "$work/real-$driver" "$work/ours" >>"$work/found"
done
[ "$(wc -l <"$work/ours")" -gt 40 ] || { echo "mps: too little was asked" >&2 && exit 1; }
explained=$(sort -u "$work/found" | e2e/cudart/explain -v list="$list") ||
    { echo "$explained" >&2 && echo "mps: fix the simulator, or explain in $list" >&2 && exit 1; }
echo "mps: the simulated control daemon and the real ones: $explained"
