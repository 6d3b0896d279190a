#!/bin/sh
# Makes what a virtual machine boots: a Debian release with its kernel, systemd and container engines, by mmdebstrap.
#
#   e2e/vm/root.sh DIR RELEASE [KERNEL]    e.g. build/vm/debian-12 bookworm
#
# KERNEL is the suite that the kernel is from, RELEASE by default. The results are DIR/disk.img (a disk with an ext4 file system),
# DIR/vmlinuz and DIR/initrd. They stay as they are until this script or its arguments change.
set -eu

directory=$1 release=$2 kernel=${3:-$2}
key=$(cat "$0" - <<ARGUMENTS | sha256sum
$release $kernel
ARGUMENTS
)
[ "$(cat "$directory/key" 2>/dev/null)" != "$key" ] || exit 0

# The guest agent runs the tests' commands. AppArmor's program is needed by Docker, since the kernel has AppArmor.
packages=systemd,systemd-sysv,dbus,udev,kmod,procps,iproute2,initramfs-tools,linux-image-cloud-amd64,qemu-guest-agent
packages=$packages,containerd,runc,crun,containernetworking-plugins,iptables,docker.io,podman,apparmor
# Docker's command was in docker.io.
[ "$release" = bookworm ] || packages=$packages,docker-cli

mirror=$("$(dirname "$0")/../../scripts/debian-mirror")
echo "==> making a root file system of Debian $release, with the kernel of $kernel"
rm -rf "$directory"
mkdir -p "$directory"
root=$directory/root
suites="deb $mirror $release main"
if [ "$kernel" != "$release" ]; then
    suites="$suites
deb $mirror $kernel main"
fi
preference="Package: linux-*\nPin: release n=$kernel\nPin-Priority: 990\n"
if ! echo "$suites" | mmdebstrap --variant=minbase --mode=root --include="$packages" \
    --setup-hook="mkdir -p \$1/etc/apt/preferences.d && printf '$preference' >\$1/etc/apt/preferences.d/kernel" \
    "$release" "$root" - >"$directory/log" 2>&1; then
    tail -n 20 "$directory/log" >&2
    exit 1
fi

# The network is qemu's own, with its fixed addresses. Nothing else is reached through it than Nomad's API.
cat >"$root/etc/systemd/network/qemu.network" <<'NETWORK'
[Match]
Type=ether

[Network]
Address=10.0.2.15/24
NETWORK
echo vm >"$root/etc/hostname"
echo '127.0.0.1 localhost vm' >"$root/etc/hosts"
echo '/dev/vda / ext4 noatime 0 1' >"$root/etc/fstab"
echo 'LABEL=media /media ext4 ro 0 0' >>"$root/etc/fstab"
: >"$root/etc/machine-id"
# What only takes time is masked. Tests start the engines that they use. Docker loads its own profile of AppArmor.
in_root() { chroot "$root" systemctl --quiet "$@" 2>>"$directory/log"; }
in_root enable systemd-networkd
in_root disable docker.service docker.socket podman.socket podman.service podman-restart.service
in_root mask apparmor systemd-networkd-wait-online getty@tty1 serial-getty@ttyS0 e2scrub_reap podman-auto-update.service \
    podman-auto-update.timer apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer

cp "$root"/boot/vmlinuz-* "$directory/vmlinuz"
cp "$root"/boot/initrd.img-* "$directory/initrd"
truncate -s 4G "$directory/disk.img"
mke2fs -q -t ext4 -d "$root" "$directory/disk.img"
rm -rf "$root"
echo "$key" >"$directory/key"
