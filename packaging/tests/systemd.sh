# The services under a systemd of their own: enabled, upgraded and removed with the package. Sourced by package_test.sh.

fresh_root systemd
boot_root --private-network

units="tranche-agent tranche-governor"
states() { booted systemctl is-active $units | xargs; }
main_pids() { booted systemctl show --property MainPID --value $units | xargs; }

booted dpkg --install /packages/older/dist/tranche_0.0.1_amd64.deb >"$layers/log" 2>&1
check "systemd: installation" 0 $?
check "systemd: the units are without fault" "" "$(booted sh -c 'systemd-analyze --man=no verify /usr/lib/systemd/system/tranche-*.service' 2>&1)"
check "systemd: no service starts by itself" "inactive inactive" "$(states)"
booted systemctl --quiet enable --now $units >"$layers/log" 2>&1
check "systemd: enable --now" "0 active active" "$? $(states)"
check "systemd: the services are confined" "" "$(for unit in $units; do booted systemd-analyze security --threshold=40 $unit >/dev/null 2>&1 || echo $unit; done)"
check "systemd: the agent serves metrics" 'tranche_source_up{source="ledger"} 1' "$(booted bash -c 'exec 3<>/dev/tcp/127.0.0.1/9760 &&
    printf "GET /metrics HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n" >&3 && grep "source=.ledger" <&3')"
booted sh -c 'mkdir -p /run/tranche/claims/00c0ffee && mount -t tmpfs region /run/tranche/claims/00c0ffee'
set -- $(main_pids)
check "systemd: both services see regions that are mounted later" 0 \
    "$(booted grep -q '^region ' "/proc/$1/mounts" && booted grep -q '^region ' "/proc/$2/mounts"; echo $?)"
check "systemd: the agent's database is for root alone" "600 root" "$(booted stat --format '%a %U' /var/lib/tranche/usage.db)"

booted sh -c 'mkdir /srv/tranche && echo "state_dir = \"/srv/tranche\"" >>/etc/tranche/config.toml && systemctl restart tranche-agent'
check "systemd: the agent accounts usage in another state_dir" 0 \
    "$(booted timeout 30 sh -c 'until [ -e /srv/tranche/usage.db ]; do sleep 0.1; done'; echo $?)"

before=$(main_pids)
booted dpkg --install "/packages/dist/${deb_amd64##*/}" >"$layers/log" 2>&1
check "systemd: upgrade" "0 active active" "$? $(states)"
check "systemd: the upgrade restarts what runs" 1 "$([ "$before" != "$(main_pids)" ] && echo 1)"
booted dpkg --remove tranche >"$layers/log" 2>&1
check "systemd: removal" "0 inactive inactive" "$? $(states)"
booted dpkg --purge tranche >"$layers/log" 2>&1
check "systemd: purge" "0 usage.db" "$? $(booted sh -c 'ls /var/lib/tranche; ls -d /run/tranche' 2>/dev/null | grep -v -e -wal -e -shm | xargs)"
kill -KILL "$nspawn"
wait "$nspawn" 2>/dev/null
