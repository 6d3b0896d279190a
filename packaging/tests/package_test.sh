#!/bin/bash
# Installs, upgrades, removes and purges the packages in fresh roots, and compares two builds of them. `make package` has made
# them.
#
#   package_test.sh BUILD    (run from the repository's root, as root)
set -u -o pipefail

# All mounts and processes are gone with the namespaces.
if [ "${1:-}" != inside ]; then
    exec unshare --mount --propagation private --pid --fork --kill-child --mount-proc "$0" inside "$@"
fi
build=$(cd "$2" && pwd)
packages=$build/package
dist=$packages/dist
. intercept/tests/checks.sh
. packaging/tests/roots.sh

. packaging/tests/reproducible.sh
make_older_version
. packaging/tests/deb.sh
. packaging/tests/systemd.sh
check "the roll-out" 0 "$("$build/e2e/sandbox" --dir "$PWD" -- packaging/tests/rollout_test.sh "$build" >&2; echo $?)"
. packaging/tests/rpm.sh
. packaging/tests/arm64.sh

echo "package_test: $passed passed, $failed failed"
[ "$failed" = 0 ]
