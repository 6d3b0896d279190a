# The packages of arm64, as far as an emulator goes. Sourced by package_test.sh.

arm64=$layers/arm64
dpkg-deb --extract "$dist"/*_arm64.deb "$arm64"
emulate() { qemu-aarch64-static -L /usr/aarch64-linux-gnu "$@"; }

check "arm64: tranche" "$version" "$(emulate "$arm64/usr/bin/tranche" version)"
check "arm64: tranche-hook" "tranche-hook version $version" "$(emulate "$arm64/usr/bin/tranche-hook" --version)"
check "arm64: tranche-runtime" "tranche-runtime version $version" "$(emulate "$arm64/usr/bin/tranche-runtime" --tranche-version)"
for name in nomad-device-tranche nomad-driver-tranche; do
    check "arm64: $name" "$name version $version" "$(emulate "$arm64/usr/lib/tranche/plugins/$name" --version)"
done
