#!/bin/sh
# Makes a deb of version 0.0.1 with the files of another: older.sh DEB OLDER
set -eu
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
dpkg-deb --raw-extract "$1" "$tree"
sed -i 's/^Version: .*/Version: 0.0.1/' "$tree/DEBIAN/control"
dpkg-deb -Zgzip -z1 --build "$tree" "$2"
