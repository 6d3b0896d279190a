#!/bin/bash
# Rolls packages out with the job in examples/, by a Nomad agent that systemd runs on a node with simulated GPUs, and that the job
# restarts. `make package-test` calls it in a sandbox, which has a network and cgroups of its own.
#
#   rollout_test.sh BUILD    (run from the repository's root, as root)
set -u -o pipefail

build=$(cd "$1" && pwd)
packages=$build/package
. intercept/tests/checks.sh
. packaging/tests/roots.sh

fresh_root rollout
cat >"$root/etc/systemd/system/nomad.service" <<'UNIT'
[Service]
Type=notify
ExecStart=/usr/bin/nomad agent -config /etc/nomad.d
KillMode=process
KillSignal=SIGINT
UNIT
cat >>"$root/etc/nomad.d/nomad.hcl" <<'CONFIG'
bind_addr = "127.0.0.1"
advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}
server {
  enabled          = true
  bootstrap_expect = 1
}
client {
  enabled           = true
  network_interface = "lo"
}
plugin "raw_exec" {
  config { enabled = true }
}
CONFIG
cat >"$root/web.nomad.hcl" <<'JOB'
job "web" {
  group "web" {
    task "web" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args    = ["987654"]
      }
    }
  }
}
JOB
for program in "$build/tools/nomad" "$(command -v runc)"; do
    touch "$root/usr/bin/${program##*/}"
    mount --bind "$program" "$root/usr/bin/${program##*/}"
done
mkdir "$root/sim" "$root/examples"
cp -r "$build/sim/bin" "$build/sim/lib" e2e/simgpu/topologies/h200x2.conf "$root/sim/"
mount --bind examples "$root/examples"
busybox httpd -p 127.0.0.1:8000 -h "$packages/dist"

boot_root
# Nomad makes cgroups, which are those of the sandbox.
booted findmnt --raw --noheadings --types cgroup,cgroup2 --output TARGET | while read -r hierarchy; do
    booted mount --options remount,bind,rw "$hierarchy"
done
booted mount --types tmpfs driver /proc/driver
booted env SIMGPU_TOPOLOGY=/sim/h200x2.conf /sim/bin/simgpu root /
booted systemctl start nomad

# until_ok COMMAND...: repeats a command until it succeeds, for two minutes at most.
until_ok() {
    for _ in $(seq 240); do
        "$@" && return
        sleep 0.5
    done
    echo "not within two minutes: $*" >&2
    return 1
}

# allocation VERSION: the state of the allocation of a version of the job, and its ID.
allocation() {
    booted nomad job allocs -t '{{range .}}{{.JobVersion}} {{.ClientStatus}} {{.ID}}{{"\n"}}{{end}}' tranche-rollout 2>/dev/null |
        sed -n "s/^$1 //p"
}
ended() { [[ $(allocation "$1") == @(complete|failed)\ * ]]; }

# roll_out VERSION VAR...: runs a version of the job with variables and prints what becomes of it.
roll_out() {
    local version=$1
    shift
    until_ok booted nomad job run -detach "${@/#/-var=}" /examples/rollout.nomad.hcl >"$layers/log" 2>&1
    until_ok ended "$version"
    read -r state id <<<"$(allocation "$version")"
    booted nomad alloc status "$id" >"$layers/log" 2>&1
    booted nomad alloc logs "$id" >>"$layers/log" 2>&1
    booted nomad alloc logs -stderr "$id" >>"$layers/log" 2>&1
    echo "$state"
    [ "$state" = complete ] || cat "$layers/log" >&2
}
installed() { booted dpkg-query --show --showformat '${Version}' tranche; }
agent() { booted systemctl show --property MainPID --value nomad; }
task() { pgrep --full '^/bin/sleep 987654'; }
devices() { booted nomad node status -self -verbose 2>/dev/null | grep nvidia/slice >/dev/null; }

until_ok booted nomad job run -detach /web.nomad.hcl >/dev/null 2>&1
until_ok task >/dev/null
web=$(task)

check "a node without Tranche" complete "$(roll_out 0 package=/packages/older/dist/tranche_0.0.1_amd64.deb)"
check "the package is installed" 0.0.1 "$(installed)"
check "Nomad has its slices" 0 "$(until_ok devices; echo $?)"

# The older version's plugins differ from those of this one.
plugin=/usr/lib/tranche/plugins/nomad-driver-tranche
booted sh -c "cp $plugin /other && echo >>/other && mv /other $plugin && systemctl restart nomad"
check "doctor sees no old plugin" 0 "$(booted tranche doctor >/dev/null; echo $?)"
before=$(agent)
deb=$(cd "$packages/dist" && echo tranche_*_amd64.deb)
check "an upgrade, fetched" complete "$(roll_out 1 "package=http://127.0.0.1:8000/${deb/amd64/'${attr.cpu.arch}'}" \
    checksum="sha256:$(sha256sum <"$packages/dist/$deb" | cut -d ' ' -f 1)")"
check "the package is upgraded" "$(dpkg-deb --field "$packages/dist/$deb" Version)" "$(installed)"
check "Nomad is restarted" 1 "$([ "$before" != "$(agent)" ] && grep -c '^ran: systemctl restart nomad' "$layers/log")"
check "Nomad has its slices again" 0 "$(until_ok devices; echo $?)"

before=$(agent)
check "the version before, with the same plugins" complete "$(roll_out 2 package=/packages/older/dist/tranche_0.0.1_amd64.deb 'nodes=.')"
check "the package is the older one" 0.0.1 "$(installed)"
check "Nomad is not restarted" "$before" "$(agent)"
check "the task keeps running" "$web" "$(task)"
check "a package that is none" failed "$(roll_out 3 package=/packages/absent 2>/dev/null)"
check "the error" 0 "$(grep -q 'there is no file /packages/absent on this node' "$layers/log"; echo $?)"

kill -KILL "$nspawn"
wait "$nspawn" 2>/dev/null
echo "rollout_test: $passed passed, $failed failed"
[ "$failed" = 0 ]
