# The RPM package. A root of Debian's has no rpm database, so it brings none of the packages that ours depends on; what the
# scripts do is the same. Sourced by package_test.sh.

in_rpm() { rpm --root "$root" --dbpath /var/lib/rpm --nodeps "$@"; }

check "rpm: depends on" "glibc >= 2.34" \
    "$(rpm --query --package --requires "$older/dist/tranche-0.0.1-1.x86_64.rpm" | grep -v '^rpmlib\|^/bin/sh' | xargs)"

fresh_root rpm
in_rpm --install "$older/dist/tranche-0.0.1-1.x86_64.rpm" >"$layers/log" 2>&1
check "rpm: installation" 0 $?
check "rpm: the next step is named" 1 "$(grep -c 'tranche install nomad' "$layers/log")"
check "rpm: the program" "$version" "$(in_root tranche version)"
check "rpm: files are as packaged" "" "$(in_rpm --verify tranche)"
in_root tranche install nomad >"$layers/log" 2>&1
check "rpm: tranche install nomad" 0 $?

start_task
mounted=$(inode run/task/libcuda.so.1)
echo '# an edit of the operator' >>"$root/etc/tranche/config.toml"
in_rpm --upgrade "$rpm_amd64" >"$layers/log" 2>&1
check "rpm: upgrade" 0 $?
check "rpm: the upgrade says what Nomad needs" 1 "$(grep -c 'systemctl restart nomad' "$layers/log")"
check "rpm: the operator's edit" "# an edit of the operator" "$(tail -n 1 "$root/etc/tranche/config.toml")"
check "rpm: the new default is beside it" "" "$(cmp packaging/config.toml "$root/etc/tranche/config.toml.rpmnew" 2>&1)"
check "rpm: the task keeps its library" "$mounted" "$(inode run/task/libcuda.so.1)"
check "rpm: the claim" 1 "$(in_root tranche claim list 2>/dev/null | grep -c '00c0ffee.* running ')"
check "rpm: the plugin is linked" "nomad-driver-tranche version $version" "$(in_root $plugin --version)"

in_rpm --erase tranche >"$layers/log" 2>&1
check "rpm: removal under a running task" 1 "$(($? != 0))"
check "rpm: the refusal names the container" 1 "$(grep -c 'container web runs with claim 00c0ffee' "$layers/log")"
check "rpm: the plugin is still there" "nomad-driver-tranche version $version" "$(in_root $plugin --version)"
end_task
in_rpm --erase tranche >"$layers/log" 2>&1
check "rpm: removal" 0 $?
check "rpm: what Nomad had is gone" "nomad.hcl" "$(ls "$root/etc/nomad.d" "$root/opt/nomad/plugins" | grep -v -e : -e '^$')"
check "rpm: no program stays" "" "$(find "$root/usr" -name '*tranche*')"
check "rpm: the ledger stays" 00c0ffee.json "$(ls "$root/var/lib/tranche/claims")"
