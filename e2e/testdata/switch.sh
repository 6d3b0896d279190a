# Makes a machine out of this one that has Nomad, Docker with NVIDIA's runtime, and nomad-device-nvidia, and runs the
# commands of docs/from-nomad-device-nvidia.md there.
#   switch.sh DIR BUILD TOPOLOGY RECORDING
# DIR holds the commands (script), the page's files and an image. GPUs are simulated; what stands in for nomad-device-nvidia
# repeats RECORDING. It runs in mount and PID namespaces of its own, with which all of it goes away.
set -eu
dir=$1 build=$2 topology=$3 recording=$4
. "$(dirname "$0")/../../internal/cli/install/testdata/machine.sh"
for file in script image.tar train.nomad.hcl fraction.nomad.hcl tranche-block nvidia.hcl; do
    cp "$dir/$file" "$root/root/node/"
done
cp "$(dirname "$0")/switch_functions.sh" "$root/root/node/"

mkdir -p "$root/etc/nomad.d" "$root/opt/nomad/data/plugins" "$root/etc/docker" "$root/etc/nvidia-container-runtime"
mount -t tmpfs tmpfs "$root/opt/nomad"
mkdir -p "$root/opt/nomad/data/plugins"
cp "$build/e2e/replay" "$root/opt/nomad/data/plugins/nomad-device-nvidia"
cp "$recording" "$root/opt/nomad/data/plugins/nomad-device-nvidia.json"
cp "$build/tools/nomad" "$root/usr/local/bin/nomad"
for program in nvidia-container-runtime nvidia-container-runtime-hook nvidia-cdi-hook; do
    cp "$build/tools/$program" "$root/usr/local/bin/"
done
cp "$build/e2e/nvidia-container-cli" "$root/usr/local/bin/"

cat >"$root/etc/nomad.d/nomad.hcl" <<'AGENT'
data_dir             = "/opt/nomad/data"
bind_addr            = "127.0.0.1"
disable_update_check = true

advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}

client {
  enabled           = true
  servers           = ["127.0.0.1:5647"]
  network_interface = "lo"

  options = {
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean"
    "driver.denylist"      = "exec,java,qemu"
  }
}

plugin "docker" {
  config {
    allow_runtimes = ["runc", "nvidia"]
    gc {
      image = false
    }
  }
}
AGENT
cat >"$root/root/node/server.hcl" <<'SERVER'
data_dir             = "/opt/nomad/server"
bind_addr            = "127.0.0.1"
disable_update_check = true

advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}

ports {
  http = 5646
  rpc  = 5647
  serf = 5648
}

server {
  enabled          = true
  bootstrap_expect = 1
  raft_multiplier  = 1
}
SERVER
echo '{"runtimes": {"nvidia": {"path": "/usr/local/bin/nvidia-container-runtime"}}}' >"$root/etc/docker/daemon.json"
cat >"$root/etc/nvidia-container-runtime/config.toml" <<'NVIDIA'
[nvidia-container-cli]
path = "/usr/local/bin/nvidia-container-cli"
load-kmods = false
[nvidia-container-runtime]
runtimes = ["runc"]
mode = "legacy"
[nvidia-container-runtime-hook]
path = "/usr/local/bin/nvidia-container-runtime-hook"
skip-mode-detection = true
NVIDIA

cat >"$root/usr/local/bin/await" <<'AWAIT'
#!/bin/sh
# await COMMAND... until it succeeds, for a minute
for _ in $(seq 600); do
    ! "$@" >/dev/null 2>&1 || exit 0
    sleep 0.1
done
echo "this did not come true: $*" >&2
"$@" >&2
tail -60 /run/nomad.log >&2
exit 1
AWAIT
# There is no systemd. A unit of Nomad kills the agent alone: its tasks go on.
cat >"$root/usr/local/bin/systemctl" <<'SYSTEMCTL'
#!/bin/sh
set -eu
gone() { ! kill -0 "$1" 2>/dev/null; }
started() { [ "$(grep -c 'Nomad agent started!' /run/nomad.log)" -ge "$1" ] && nomad node status -self; }
start() {
    runs=$(grep -c 'Nomad agent started!' /run/nomad.log 2>/dev/null || true)
    nomad agent -config /etc/nomad.d >>/run/nomad.log 2>&1 &
    echo $! >/run/nomad.pid
    n=0
    until started $((runs + 1)) >/dev/null 2>&1; do
        n=$((n + 1))
        [ $n -lt 600 ] && kill -0 "$(cat /run/nomad.pid)" || { tail -40 /run/nomad.log >&2; exit 1; }
        sleep 0.1
    done
}
case "$*" in
"start containerd")
    containerd >/run/containerd.log 2>&1 &
    await ctr version
    ;;
"start docker")
    dockerd --bridge none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false \
        --containerd /run/containerd/containerd.sock --storage-driver overlay2 >/run/dockerd.log 2>&1 &
    await docker info
    ;;
"start nomad-server") # a client that comes before the keyring is refused, and comes again much later
    nomad agent -config server.hcl >/run/nomad-server.log 2>&1 &
    await grep 'initialized keyring' /run/nomad-server.log
    ;;
"start nomad") start ;;
"restart nomad")
    pid=$(cat /run/nomad.pid)
    kill "$pid"
    while ! gone "$pid"; do sleep 0.1; done
    start
    ;;
*) echo "systemctl $*: not here" >&2; exit 1 ;;
esac
SYSTEMCTL
chmod 755 "$root/usr/local/bin/await" "$root/usr/local/bin/systemctl"
enter_machine
exec sh script
