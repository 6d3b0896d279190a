#!/bin/bash
# Debian's hashcat on the simulated GPU, bare, under a claim, and in turns. It divides its work by the memory that it finds, so it
# is also compared with a GPU that has as much as the claim.
#
#   hashcat_test.sh BUILD    (run from the repository's root, as root; $CC compiles)
set -u -o pipefail

build=$1
root=$build/clients/hashcat
scripts/debian-root "$root" bookworm hashcat dash &&
    scripts/nvidia-packages "$root" bookworm libnvrtc11.2 libnvrtc-builtins11.8 || exit 1
ln -sf libnvrtc.so.11.2 "$root/usr/lib/x86_64-linux-gnu/libnvrtc.so"
. e2e/clients/node.sh

attack=(hashcat --force --quiet --potfile-disable --logfile-disable --restore-disable --self-test-disable)
md5=("${attack[@]}" -m 0 -a 3 8743b52063cd84097a65d1633f5c74f5 '?d?d')
scrypt=("${attack[@]}" -m 8900 -a 3 'SCRYPT:16384:8:1:MDIwMzMwNTQwNDQyNQ==:5FW+zWivLxgCWj7qLiQbeC8zaNQ+qdO0NUinvqyFcfo=' '?d?d')

# Status 1: all passwords tried, and none was found, since the simulated GPU runs no kernel. The size of its kernels is given, which
# hashcat would else choose by how long they take.
run_each fixed sh -c '"$@"; [ $? = 1 ]' sh "${attack[@]}" --hwmon-disable -n 1 -u 1 -m 0 -a 3 8743b52063cd84097a65d1633f5c74f5 '?d?d?d?d'
check "fixed: many kernels" 1 "$(($(record shadow-fixed launches) > 30))"

run_all() { # DRIVER LABEL
    local what
    for what in query md5 scrypt; do
        local -n command=$what
        in_root "$1" "$2-$what" "${command[@]}" >"$node/$2-$what.out" 2>&1
        echo "$?" >>"$node/$2-$what.out"
    done
}
# shellcheck disable=SC2034 # run_all uses it by its name
query=(hashcat -I)

run_all bare bare
run_all shadow shadow
sed -i '0,/^memory_mib = 1024$/s//memory_mib = 512/' "$node/topology"
mv "$node/state" "$node/state-before"
simgpu init || exit 1
run_all bare small
mv "$node/state" "$node/state-small"

recorded() { # LABEL FIELD: the label is of a run on the whole GPU, under a claim on it, or on a small GPU
    [ "${1%%-*}" = small ] && ln -sfn state-small "$node/state" || ln -sfn state-before "$node/state"
    record "$@"
}

memory() { # LABEL
    sed -n 's/^ *Memory.\(Total\|Free\)\.*: /\1 /p' "$node/$1-query.out" | tr '\n' ' '
}
check "query: the whole GPU" "Total 1024 MB Free 960 MB " "$(memory bare)"
check "query: the limit" "Total 512 MB Free 448 MB " "$(memory shadow)"
check "query: as on a GPU of 512 MiB" "" "$(diff "$node/small-query.out" "$node/shadow-query.out")"
check "md5: without a limit, ends" 1 "$(tail -n 1 "$node/bare-md5.out")"
check "md5: as on a GPU of 512 MiB" "" "$(diff "$node/small-md5.out" "$node/shadow-md5.out")"
check "md5: ends" 1 "$(tail -n 1 "$node/shadow-md5.out")"
check "md5: kernels, as on a GPU of 512 MiB" "$(recorded small-md5 launches)" "$(recorded shadow-md5 launches)"
check "md5: many of them" 1 "$(($(recorded shadow-md5 launches) > 10))"
check "md5: the most that it held, as on a GPU of 512 MiB" "$(recorded small-md5 peak_bytes)" "$(recorded shadow-md5 peak_bytes)"
check "md5: without a limit it takes more than the claim has" 1 "$(($(recorded bare-md5 peak_bytes) > limit * mib))"
check "md5: nothing stays" 0 "$(recorded shadow-md5 bytes)"
# Needs more memory than the claim has.
check "scrypt: without a limit, ends" 1 "$(tail -n 1 "$node/bare-scrypt.out")"
check "scrypt: does not fit, as users of hashcat know it" "Invalid extra buffer size." "$(grep Invalid "$node/shadow-scrypt.out")"
check "scrypt: as on a GPU of 512 MiB" "" "$(diff "$node/small-scrypt.out" "$node/shadow-scrypt.out")"
check "scrypt: nothing stays" 0 "$(recorded shadow-scrypt bytes)"

finish
