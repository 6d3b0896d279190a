# The Debian package, from its installation to its end. Sourced by package_test.sh.

fresh_root deb
in_root dpkg --install /packages/older/dist/tranche_0.0.1_amd64.deb >"$layers/log" 2>&1
check "deb: installation" 0 $?
check "deb: the next step is named" 1 "$(grep -c 'tranche install nomad' "$layers/log")"
check "deb: the program" "$version" "$(in_root tranche version)"
check "deb: files" "" "$(cd "$root" && ls usr/share/man/man1/tranche-doctor.1.gz usr/share/bash-completion/completions/tranche \
    usr/share/zsh/vendor-completions/_tranche usr/share/fish/vendor_completions.d/tranche.fish usr/bin/tranche-hook \
    usr/lib/tranche/governed/libcuda.so.1 usr/lib/tranche/compute/libcuda.so.1 usr/share/doc/tranche/copyright usr/share/doc/tranche/docs/install.md 2>&1 >/dev/null)"
for unit in packaging/systemd/*.service; do
    check "deb: $unit" "" "$(cmp "$unit" "$root/usr/lib/systemd/system/${unit##*/}" 2>&1)"
done
check "deb: the configuration" "" "$(cmp $older/config.toml "$root/etc/tranche/config.toml" 2>&1)"
check "deb: files are as packaged" "" "$(in_root dpkg --verify tranche)"
check "deb: the completion works" 0 "$(in_root bash -c '. /usr/share/bash-completion/completions/tranche' >/dev/null 2>&1; echo $?)"

in_root tranche install nomad >"$layers/log" 2>&1
check "deb: tranche install nomad" 0 $?
plugin=/opt/nomad/plugins/nomad-driver-tranche
check "deb: the plugin is linked" /usr/lib/tranche/plugins/nomad-driver-tranche "$(readlink "$root$plugin")"
check "deb: the plugin runs" "nomad-driver-tranche version $version" "$(in_root $plugin --version)"

# --- upgrade, under a running task ---

start_task
mounted=$(inode run/task/libcuda.so.1)
echo '# an edit of the operator' >>"$root/etc/tranche/config.toml"
in_root dpkg --install "/packages/dist/${deb_amd64##*/}" </dev/null >"$layers/log" 2>&1
check "deb: upgrade, which asks nothing" 0 $?
check "deb: the upgrade says what Nomad needs" 1 "$(grep -c 'systemctl restart nomad' "$layers/log")"
check "deb: the operator's edit" "# an edit of the operator" "$(tail -n 1 "$root/etc/tranche/config.toml")"
check "deb: the new default" "" "$(cmp packaging/config.toml "$root/usr/share/tranche/config.toml" 2>&1)"
check "deb: the task keeps its library" "$mounted" "$(inode run/task/libcuda.so.1)"
check "deb: the next container gets another" 1 "$(($(inode usr/lib/tranche/libcuda.so.1) != mounted))"
check "deb: the claim" 1 "$(in_root tranche claim list 2>/dev/null | grep -c '00c0ffee.* running ')"
check "deb: the plugin is still linked" "nomad-driver-tranche version $version" "$(in_root $plugin --version)"

# --- removal ---

mkdir -p "$root/run/tranche/governor"
in_root setsid sh -c 'while [ -e /usr/bin/tranche ]; do tranche governor >>/run/tranche/governor/log 2>&1; done' & # as the device plugin does
keeper=$!
until [ -s "$root/run/tranche/governor/status.json" ]; do sleep 0.1; done
in_root dpkg --remove tranche >"$layers/log" 2>&1
check "deb: removal under a running task" 1 "$(($? != 0))"
check "deb: the refusal names the container" 1 "$(grep -c 'container web runs with claim 00c0ffee' "$layers/log")"
check "deb: it is still installed" installed "$(in_root dpkg-query --show --showformat '${db:Status-Status}' tranche)"
check "deb: the plugin is still there" "nomad-driver-tranche version $version" "$(in_root $plugin --version)"
end_task
start_plain_task
in_root dpkg --remove tranche >"$layers/log" 2>&1
check "deb: removal under a task without a claim" 1 "$(($? != 0))"
check "deb: the refusal names its container" 1 "$(grep -c "tasks of Nomad run and need nomad-driver-tranche: container $plain_task" "$layers/log")"
end_task
in_root dpkg --remove tranche >"$layers/log" 2>&1
check "deb: removal" 0 $?
check "deb: removal ends the governor" 1 "$(grep -c 'ended the governor' "$layers/log")"
timeout 60 tail --pid=$keeper -f /dev/null
check "deb: no governor is left" "" "$(pgrep --full 'tranche governor')"
check "deb: what Nomad had is gone" "nomad.hcl" "$(ls "$root/etc/nomad.d" "$root/opt/nomad/plugins" | grep -v -e : -e '^$')"
check "deb: no file stays but configuration and ledger" "$root/etc/tranche/config.toml" \
    "$(in_root true && find "$root/usr" "$root/etc" -path '*tranche*' -name '*tranche*' -type f -o -path '*/etc/tranche/config.toml')"
check "deb: the ledger stays" 00c0ffee.json "$(ls "$root/var/lib/tranche/claims")"
check "deb: the configuration stays" "# an edit of the operator" "$(tail -n 1 "$root/etc/tranche/config.toml")"

in_root dpkg --install "/packages/dist/${deb_amd64##*/}" >"$layers/log" 2>&1
check "deb: installed again" 0 $?
check "deb: with the configuration" "# an edit of the operator" "$(tail -n 1 "$root/etc/tranche/config.toml")"

# --- back to the version before, and purge ---

in_root dpkg --install /packages/older/dist/tranche_0.0.1_amd64.deb >"$layers/log" 2>&1
check "deb: rollback" "0 0.0.1" "$? $(in_root dpkg-query --show --showformat '${Version}' tranche)"
start_plain_task
in_root env TRANCHE_FORCE_REMOVAL=1 dpkg --remove tranche >"$layers/log" 2>&1
check "deb: removal all the same" 0 $?
mkdir -p "$root/run/tranche/claims/0ther" # as a region
for _ in 1 2 3 4; do # as a device plugin that still runs
    (while [ -d "$root/var/lib/tranche/claims" ]; do : >>"$root/var/lib/tranche/claims/.lock"; done) 2>/dev/null &
done
in_root dpkg --purge tranche >"$layers/log" 2>&1
check "deb: purge under a task" "1 1 1" "$(($? != 0)) $(grep -c 'Stop them, and purge again' "$layers/log") $(find "$root/run/tranche" -name 0ther | wc -l)"
end_task
in_root dpkg --purge tranche >"$layers/log" 2>&1
check "deb: purge" 0 $?
check "deb: nothing stays" "" "$(find "$root/etc" "$root/usr" "$root/var/lib" "$root/run" -name '*tranche*' -not -path '*/dpkg/*')"
check "deb: the region's mount is gone" 0 "$(grep -c "$root/run/tranche" /proc/self/mounts)"

# --- over a build folder that was installed, and what users have ---

fresh_root deb-over-build
folder=/packages/dist/$(cd "$dist" && echo *-linux-amd64.tar.gz)
in_root tar --extract --gzip --file "$folder" --directory /root
in_root sh -c '/root/tranche-*/bin/tranche install nomad --from /root/tranche-*' >"$layers/log" 2>&1
check "deb: a build folder is installed" 0 $?
echo '# an edit of the operator' >>"$root/etc/tranche/config.toml"
in_root dpkg --install "/packages/dist/${deb_amd64##*/}" </dev/null >"$layers/log" 2>&1
check "deb: the package over it, which asks nothing" 0 $?
check "deb: the operator's configuration" "# an edit of the operator" "$(tail -n 1 "$root/etc/tranche/config.toml")"
in_root tranche install nomad >"$layers/log" 2>&1
check "deb: tranche install over it" 0 $?
check "deb: the plugin is the package's" /usr/lib/tranche/plugins/nomad-driver-tranche "$(readlink "$root$plugin")"
in_root tranche install containerd >"$layers/log" 2>&1
check "deb: no configuration for an engine that is not there" "1 1" "$? $(grep -c 'containerd is not installed' "$layers/log")"
mkdir -p "$root/var/lib/tranche/volumes/web-data" "$root/var/lib/tranche/claims"
touch "$root/var/lib/tranche/usage.db" "$root/var/lib/tranche/volumes/web-data/rows"
in_root dpkg --purge tranche >"$layers/log" 2>&1
check "deb: purge beside users' data" 0 $?
check "deb: users' data stays" "usage.db volumes/web-data/rows" "$(cd "$root/var/lib/tranche" && find . -type f -printf '%P\n' | sort | xargs)"
check "deb: and the log says so" 1 "$(grep -c '/var/lib/tranche stays, with: usage.db volumes' "$layers/log")"
check "deb: nothing else stays" "" "$(find "$root/etc" "$root/usr" "$root/opt" -name '*tranche*' -not -path '*/dpkg/*')"
