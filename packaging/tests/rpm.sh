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
start_plain_task
in_rpm --erase tranche >"$layers/log" 2>&1
check "rpm: removal under a task without a claim" "1 1" "$(($? != 0)) $(grep -c "need nomad-driver-tranche: container $plain_task" "$layers/log")"
end_task
mkdir -p "$root/var/lib/tranche/volumes" && touch "$root/var/lib/tranche/volumes/rows" "$root/var/lib/tranche/usage.db"
in_rpm --erase tranche >"$layers/log" 2>&1
check "rpm: removal" 0 $?
check "rpm: users' data stays" 2 "$(ls "$root/var/lib/tranche/volumes/rows" "$root/var/lib/tranche/usage.db" | wc -l)"
check "rpm: what Nomad had is gone" "nomad.hcl" "$(ls "$root/etc/nomad.d" "$root/opt/nomad/plugins" | grep -v -e : -e '^$')"
check "rpm: no program stays" "" "$(find "$root/usr" -name '*tranche*')"
check "rpm: the ledger stays" 00c0ffee.json "$(ls "$root/var/lib/tranche/claims")"

# The script of the roll-out, with an rpm that works on the root. What Nomad does around it is tested with deb, in rollout_test.sh.
fresh_root rpm-rollout
shims=$layers/shims
mkdir "$shims"
cat >"$shims/rpm" <<SHIM
#!/bin/sh
case "\$*" in *--upgrade*) set -- --nodeps "\$@" ;; esac
exec $(command -v rpm) --root "$root" --dbpath /var/lib/rpm "\$@"
SHIM
printf '#!/bin/sh\necho "tranche $*"\n' >"$shims/tranche"
chmod +x "$shims"/*
script=$(sed -n '/<<-EOS$/,/^ *EOS$/p' examples/rollout.nomad.hcl | sed '1d;$d')

# roll_out_rpm FOLDER PACKAGE: runs the script where the job has fetched a package into a folder, or is told of one on the node.
roll_out_rpm() { NOMAD_TASK_DIR=$1 PATH=$shims:$PATH sh -eu -c "$script" rollout "$2" >"$layers/log" 2>&1; }
rpm_installed() { "$shims/rpm" --query tranche; }

roll_out_rpm /nowhere "$older/dist/tranche-0.0.1-1.x86_64.rpm"
check "rpm: roll-out" 0 $?
check "rpm: roll-out installs the package" tranche-0.0.1-1.x86_64 "$(rpm_installed)"
check "rpm: roll-out has Nomad use it" "tranche install nomad --restart tranche doctor" "$(grep '^tranche [id]' "$layers/log" | xargs)"
mkdir "$layers/fetched"
cp "$rpm_amd64" "$layers/fetched/"
roll_out_rpm "$layers/fetched" ""
check "rpm: roll-out of a fetched package" 0 $?
check "rpm: roll-out upgrades the package" "$(rpm --query --package "$rpm_amd64")" "$(rpm_installed)"
before=$(inode usr/bin/tranche)
roll_out_rpm "$layers/fetched" ""
check "rpm: roll-out again" 0 $?
check "rpm: roll-out leaves what is installed alone" "$before" "$(inode usr/bin/tranche)"
roll_out_rpm /nowhere "$older/dist/tranche-0.0.1-1.x86_64.rpm"
check "rpm: roll-out of the version before" "0 tranche-0.0.1-1.x86_64" "$? $(rpm_installed)"
roll_out_rpm /nowhere /packages/absent.rpm
check "rpm: roll-out of an absent package" "1 there is no file /packages/absent.rpm on this node" "$? $(cat "$layers/log")"
