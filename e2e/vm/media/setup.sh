#!/bin/sh
# Makes a node of a fresh machine: a simulated GPU, Nomad, and Tranche as docs/install.md says.
set -eu

mkdir -p /opt/sim
cp -r /media/sim/. /opt/sim/
cp -r /media/root/. /
cp /media/nomad /usr/bin/nomad
systemctl daemon-reload
systemctl --quiet enable --now simgpu

apt-get install -y /media/tranche.deb
tranche install nomad
systemctl --quiet enable --now tranche-agent tranche-governor nomad
for image in /media/images/*.tar; do
    ctr --namespace nomad image import "$image"
done
