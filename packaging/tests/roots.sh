# Fresh root file systems, what a node with running tasks has, and an older version of the packages. Sourced by package_test.sh.

version=$(cat "$build/version")
older=$packages/older

# One Debian, made once; each test gets a layer over it.
debian=$packages/debian
if [ ! -e "$debian/.with-systemd" ]; then
    rm -rf "$debian"
    mirror=$(scripts/debian-mirror)
    echo "==> making a root file system of Debian 12"
    debootstrap --variant=minbase --include=systemd bookworm "$debian" "$mirror" >"$packages/debootstrap.log" 2>&1 ||
        { tail "$packages/debootstrap.log" >&2 && exit 1; }
    touch "$debian/.with-systemd"
fi

layers=$(mktemp -d)
mount -t tmpfs tmpfs "$layers"

# fresh_root NAME: sets root to a Debian in which nothing is installed beside the base system, and a Nomad agent is configured.
fresh_root() {
    root=$layers/$1
    mkdir -p "$root" "$layers/$1.upper" "$layers/$1.work"
    mount -t overlay overlay -o "lowerdir=$debian,upperdir=$layers/$1.upper,workdir=$layers/$1.work" "$root"
    mount -t proc proc "$root/proc"
    mount -t tmpfs tmpfs "$root/run"
    mkdir -p "$root/etc/nomad.d" "$root/opt/nomad" "$root/packages"
    mount --bind "$packages" "$root/packages"
    echo 'data_dir = "/opt/nomad"' >"$root/etc/nomad.d/nomad.hcl"
}

in_root() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive "$@"; }

# boot_root OPTION...: starts systemd in the root, by systemd-nspawn with these options, and waits until it is up.
boot_root() {
    umount "$root/run" "$root/proc" # nspawn mounts its own
    systemd-nspawn --quiet --directory="$root" --boot --register=no --keep-unit --console=pipe "$@" \
        </dev/null >"$layers/systemd.log" 2>&1 &
    nspawn=$!
    while kill -0 "$nspawn"; do
        case "$(booted systemctl is-system-running --wait 2>/dev/null)" in running | degraded) break ;; esac
        sleep 0.1
    done
}

# booted COMMAND...: runs a command beside systemd, which nspawn has started as its only child.
booted() { nsenter --target "$(pgrep --parent "$nspawn")" --all env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }

# start_task: what a running task has: a container with a claim, a region's mount, and the shadow library, mounted.
start_task() {
    chroot "$root" /bin/sleep infinity &
    task=$!
    mkdir -p "$root/run/task" "$root/run/tranche/claims/00c0ffee"
    touch "$root/run/task/libcuda.so.1"
    mount --bind "$root/usr/lib/tranche/libcuda.so.1" "$root/run/task/libcuda.so.1"
    mount -t tmpfs tmpfs "$root/run/tranche/claims/00c0ffee"
    mkdir -p "$root/var/lib/tranche/claims"
    cat >"$root/var/lib/tranche/claims/00c0ffee.json" <<RECORD
{
  "tranche_claim": 1,
  "id": "00c0ffee",
  "gpu": {"uuid": "GPU-1", "index": 0, "name": "GPU", "context_bytes": 0},
  "slices": ["GPU-1/slice-0"],
  "limit_bytes": 1073741824,
  "owner": "nomad",
  "created": "2026-01-01T00:00:00Z",
  "container": {
    "runtime": "containerd", "id": "web", "init_pid": $task,
    "init_start_time": $(sed 's/.*) //' /proc/$task/stat | cut -d ' ' -f 20),
    "boot_id": "$(cat /proc/sys/kernel/random/boot_id)", "bound": "2026-01-01T00:00:00Z"
  },
  "token_sha256": "00c0ffee$(printf '0%.0s' $(seq 56))"
}
RECORD
}

# start_plain_task: what a task of Nomad's without a claim has: a shim.
plain_task=2a5c1b9e-0f43-7d6a-8b1c-9d0e1f2a3b4c-web-0badcafe
start_plain_task() {
    chroot "$root" /bin/bash -c "exec -a /usr/bin/containerd-shim-runc-v2 sh -c 'read line; :' -namespace nomad -id $plain_task" <>"$layers/pipe" &
    task=$!
    until tr '\0' ' ' <"/proc/$task/cmdline" | grep -q '^[^ ]*containerd-shim'; do sleep 0.01; done
}
mkfifo "$layers/pipe"

end_task() {
    kill -KILL $task
    wait $task 2>/dev/null
}

inode() { stat --format %i "$root/$1"; }

# A version before this one, with another default configuration.
make_older_version() {
    mkdir -p "$older/dist"
    { cat packaging/config.toml && echo '# a default of before'; } >"$older/config.toml"
    ln -sfn "$packages/shared" "$older/shared"
    SOURCE_DATE_EPOCH=1700000000 PACKAGE_CONFIG=$older/config.toml \
        packaging/build amd64 "$build" v0.0.1 strip "$older/dist" >"$older/log" 2>&1 || { cat "$older/log" >&2 && exit 1; }
}
