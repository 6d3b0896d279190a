# A build of the same files in another directory is equal, byte for byte. Sourced by package_test.sh.

deb_amd64=$(ls "$dist"/*_amd64.deb)
rpm_amd64=$(ls "$dist"/*.x86_64.rpm)
check "checksums" 0 "$(cd "$dist" && sha256sum --quiet --check SHA256SUMS >&2; echo $?)"
check "packages" "2 2 2 2" "$(cd "$dist" && echo "$(ls ./*.deb | wc -l) $(ls ./*.rpm | wc -l) $(ls ./*.tar.gz | wc -l) $(ls ./*.spdx.json | wc -l)")"

echo "==> building the packages once more, elsewhere"
elsewhere=$(mktemp -d)
git ls-files --cached --others --exclude-standard -z | xargs -0 cp --parents --no-dereference --target-directory "$elsewhere" 2>/dev/null
mkdir -p "$elsewhere/build/tools"
cp "$build/tools/nfpm" "$elsewhere/build/tools/"
(
    unset MAKEFLAGS MAKELEVEL MFLAGS
    time="$(git log -1 --format=%ct)"
    make --no-print-directory -C "$elsewhere" package VERSION="$version" SOURCE_DATE_EPOCH="$time" >"$packages/elsewhere.log" 2>&1
)
check "the second build" 0 $?
check "the second build is equal" "" "$(diff "$dist/SHA256SUMS" "$elsewhere/build/package/dist/SHA256SUMS" 2>&1)"
rm -rf "$elsewhere"
