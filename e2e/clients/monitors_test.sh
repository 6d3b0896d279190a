#!/bin/bash
# Debian's monitors on the simulated GPU, bare and in a container with a claim: nvtop, btop.
#
#   monitors_test.sh BUILD    (run from the repository's root, as root; $CC compiles)
set -u -o pipefail

build=$1
root=$build/clients/monitors
# The btop of bookworm knows no GPU.
scripts/debian-root "$root" trixie nvtop btop python3-pyte ncurses-base || exit 1
. e2e/clients/node.sh
cp e2e/clients/python/{screen,hold}.py "$node/"
mkdir -p "$node/config/btop"
echo 'shown_boxes = "gpu0"' >"$node/config/btop/btop.conf"

screen() { # DRIVER PATTERN COMMAND...: what the pattern's groups found on the command's screen
    in_root "$1" monitor XDG_CONFIG_HOME=/gpu/config python3 -B /gpu/screen.py "${@:2}"
}

# The GPU, its memory in use, and all of it, as each shows them.
nvtop() { # DRIVER
    screen "$1" 'Device 0 \[(Simulated GPU S1)\][\s\S]*MEM\[[ |]*([\d.]+[MG]i)/([\d.]+[MG]i)\]' nvtop --no-color
}
btop() { # DRIVER
    screen "$1" '┐(Simulated GPU S1)┌[\s\S]*Used:─+([\d.]+ [A-Za-z]+)[\s\S]*Total: +([\d.]+ [A-Za-z]+)' btop --utf-force
}

for driver in bare shadow; do
    in_root $driver monitor nvtop --snapshot >"$node/$driver-nvtop.out" 2>"$node/said"
    check "nvtop --snapshot, $driver: ends" "0 " "$? $(cat "$node/said")"
done
check "nvtop --snapshot: what it says" "$(cat "$node/bare-nvtop.out")" "$(cat "$node/shadow-nvtop.out")"
check "nvtop --snapshot: finds the GPU" 1 "$(grep -c '"device_name": "Simulated GPU S1"' "$node/shadow-nvtop.out")"
check "nvtop: the whole GPU" "Simulated GPU S1 0.000Gi 1.000Gi" "$(nvtop bare)"
check "nvtop: the limit" "Simulated GPU S1 0.000Mi 512.000Mi" "$(nvtop shadow)"
check "btop: the whole GPU" "Simulated GPU S1 0 Byte 1.00 GiB" "$(btop bare)"
check "btop: the limit" "Simulated GPU S1 0 Byte 512 MiB" "$(btop shadow)"

# Beside a process of the claim, which holds a context of 64 MiB and 100 MiB more.
mkfifo "$node/ready" "$node/end"
in_root shadow holder python3 -B /gpu/hold.py 100 &
holder=$!
: <"$node/ready"
check "nvtop: beside a process that holds memory" "Simulated GPU S1 164.000Mi 512.000Mi" "$(nvtop shadow)"
check "btop: beside a process that holds memory" "Simulated GPU S1 164 MiB 512 MiB" "$(btop shadow)"
: >"$node/end"
wait $holder
check "the process that holds memory ends" 0 $?
check "nvtop: after it" "Simulated GPU S1 0.000Mi 512.000Mi" "$(nvtop shadow)"
check "the process that held memory: nothing stays" 0 "$(record holder bytes)"

finish
