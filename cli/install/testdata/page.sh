# Makes a machine out of this one and runs the commands of docs/install.md there.
#   page.sh DIR BUILD TOPOLOGY
# DIR holds the commands and an image of debian:12. It runs in mount and PID namespaces of its own, with which all of it
# goes away.
set -eu
dir=$1 build=$2 topology=$3
files=$dir/layer
mkdir -p "$files"
mount -t tmpfs tmpfs "$files"
mkdir "$files/upper" "$files/work" "$files/root"
root=$files/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$files/upper,workdir=$files/work" "$root"

# A machine's own file systems. Devices are made anew: a simulated GPU has no business among this machine's.
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for node in null:3 zero:5 full:7 random:8 urandom:9; do
    mknod -m 666 "$root/dev/${node%:*}" c 1 "${node#*:}"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts devpts -o newinstance,ptmxmode=0666 "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
for state in docker containerd tranche; do
    mkdir -p "$root/var/lib/$state"
done
# Images of Docker cannot lie on an overlay.
mount -t tmpfs tmpfs "$root/var/lib/docker"
mount -t tmpfs tmpfs "$root/var/lib/containerd"
rm -rf "$root/etc/docker" "$root/etc/tranche"
mkdir -p "$root/root/node"
cp "$dir/script" "$dir/image.tar" "$root/root/node/"
mkdir "$root/root/node/build" "$root/root/node/sim"
mount --bind "$build" "$root/root/node/build"
cp "$topology" "$root/root/node/topology"

# What is not as on the page: the packages are there, so that only their services are to be started; there is no systemd;
# and Docker may make no bridge, as there is no network.
cat >"$root/usr/local/bin/apt-get" <<'APT'
#!/bin/sh
set -eu
for package in "$@"; do
    case $package in install | -*) continue ;; esac
    dpkg-query -W "$package" >/dev/null
done
systemctl start docker
APT
cat >"$root/usr/local/bin/systemctl" <<'SYSTEMCTL'
#!/bin/sh
set -eu

# await COMMAND... until it succeeds, for half a minute
await() {
    for _ in $(seq 300); do
        ! "$@" >/dev/null 2>&1 || return 0
        sleep 0.1
    done
    cat /run/dockerd.log >&2
    exit 1
}

gone() { ! kill -0 "$1"; }
names_it() { docker info --format '{{json .Runtimes}}' | grep tranche-runtime; }

start() {
    dockerd --bridge none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false \
        --storage-driver overlay2 >>/run/dockerd.log 2>&1 &
    await docker info
}

case "$*" in
"start docker")
    start
    docker import --change 'ENV PATH=/usr/bin:/bin:/sbin' /root/node/image.tar debian:12 >/dev/null
    ;;
"reload docker")
    kill -HUP "$(cat /run/docker.pid)"
    await names_it # systemd would not wait, but a person takes a moment to type the next command
    ;;
"restart docker")
    pid=$(cat /run/docker.pid)
    kill "$pid"
    await gone "$pid"
    start
    ;;
*) echo "systemctl $*: not here" >&2; exit 1 ;;
esac
SYSTEMCTL
chmod 755 "$root/usr/local/bin/apt-get" "$root/usr/local/bin/systemctl"

cd "$root"
mkdir -p old
pivot_root . old
cd /root/node
umount -l /old
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
unset DOCKER_HOST TMPDIR
# Where the kernel module would have its part of /proc.
mount -t tmpfs tmpfs /proc/driver
SIMGPU_TOPOLOGY=$PWD/topology build/sim/bin/simgpu root /
export SIMGPU_TOPOLOGY=/run/simgpu/topology SIMGPU_STATE=/run/simgpu/state SIMGPU_DEV=/dev
exec sh script
