# Makes a machine out of this one: its file system is a layer over this one's, with the simulated driver where a real one
# would be. A script that runs in mount and PID namespaces of its own includes this with
#   $dir       a folder for the layer
#   $build     the build folder, which the machine has at /root/node/build
#   $topology  the simulated GPUs
# then writes below $root what else the machine has, and calls enter_machine.
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
mkdir "$root/root/node/build" "$root/root/node/sim"
mount --bind "$build" "$root/root/node/build"
cp "$topology" "$root/root/node/topology"

enter_machine() {
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
}
