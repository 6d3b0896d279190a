# Makes a machine out of this one and runs the commands of docs/install.md there.
#   page.sh DIR BUILD TOPOLOGY
# DIR holds the commands and an image of debian:12. It runs in mount and PID namespaces of its own, with which all of it
# goes away.
set -eu
dir=$1 build=$2 topology=$3
. "$(dirname "$0")/machine.sh"
cp "$dir/script" "$dir/image.tar" "$root/root/node/"

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

enter_machine
exec sh script
