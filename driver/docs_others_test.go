package driver

// The options of the other drivers, one a line, as their schemas have them. Those of the plugin follow the word plugin;
// those in a block are BLOCK.OPTION.

// dockerOptions are those of drivers/docker/config.go in Nomad 1.11.3.
const dockerOptions = `image
advertise_ipv6_address
args
auth.username
auth.password
auth.email
auth.server_address
auth_soft_fail
cap_add
cap_drop
cgroupns
command
cpuset_cpus
cpu_hard_limit
cpu_cfs_period
container_exists_attempts
devices.host_path
devices.container_path
devices.cgroup_permissions
dns_search_domains
dns_options
dns_servers
entrypoint
extra_hosts
force_pull
group_add
healthchecks.disable
hostname
init
interactive
ipc_mode
ipv4_address
ipv6_address
isolation
labels
load
logging.type
logging.driver
logging.config
mac_address
memory_hard_limit
mount.type
mount.target
mount.source
mount.readonly
mount.bind_options.propagation
mount.tmpfs_options.size
mount.tmpfs_options.mode
mount.volume_options.no_copy
mount.volume_options.labels
mount.volume_options.driver_config.name
mount.volume_options.driver_config.options
mounts
network_aliases
network_mode
oom_score_adj
runtime
pids_limit
pid_mode
ports
port_map
privileged
image_pull_timeout
readonly_rootfs
security_opt
shm_size
storage_opt
sysctl
tty
ulimit
uts_mode
userns_mode
volumes
volume_driver
work_dir
plugin endpoint
plugin auth.config
plugin auth.helper
plugin tls.cert
plugin tls.key
plugin tls.ca
plugin extra_labels
plugin logging.type
plugin logging.config
plugin gc.image
plugin gc.image_delay
plugin gc.container
plugin gc.dangling_containers.enabled
plugin gc.dangling_containers.period
plugin gc.dangling_containers.creation_grace
plugin gc.dangling_containers.dry_run
plugin volumes.enabled
plugin volumes.selinuxlabel
plugin allow_privileged
plugin allow_caps
plugin nvidia_runtime
plugin allow_runtimes
plugin infra_image
plugin infra_image_pull_timeout
plugin image_pull_timeout
plugin container_exists_attempts
plugin oom_score_adj
plugin pull_activity_timeout
plugin pids_limit
plugin disable_log_collection
plugin windows_allow_insecure_container_admin`

// podmanOptions are those of config.go in nomad-driver-podman 0.6.5.
const podmanOptions = `apparmor_profile
args
auth.username
auth.password
auth.tls_verify
auth_soft_fail
command
cap_add
cap_drop
selinux_opts
cpu_hard_limit
cpu_cfs_period
devices
entrypoint
working_dir
hostname
image
arch
os
variant
image_pull_timeout
init
init_path
ipv4_address
ipv6_address
static_ips
static_mac
labels
logging.driver
logging.options
memory_reservation
memory_swap
memory_swappiness
network_mode
ipc_mode
oom_score_adj
extra_hosts
pids_limit
port_map
ports
privileged
security_opt
socket
sysctl
tmpfs
tty
ulimit
volumes
force_pull
readonly_rootfs
userns
shm_size
plugin auth.config
plugin auth.helper
plugin volumes.enabled
plugin volumes.selinuxlabel
plugin gc.container
plugin recover_stopped
plugin extra_labels
plugin logging.driver
plugin logging.options
plugin networking.default_rootless_mode
plugin socket.name
plugin socket.socket_path
plugin socket_path
plugin disable_log_collection
plugin client_http_timeout
plugin dns_servers`

// abandonedOptions are those of containerd/driver.go in nomad-driver-containerd 0.9.4, the last one.
const abandonedOptions = `image
command
args
cap_add
cap_drop
cwd
devices
privileged
pids_limit
pid_mode
hostname
host_dns
image_pull_timeout
extra_hosts
entrypoint
seccomp
seccomp_profile
shm_size
sysctl
readonly_rootfs
host_network
auth.username
auth.password
mounts.type
mounts.target
mounts.source
mounts.options
plugin enabled
plugin containerd_runtime
plugin stats_interval
plugin allow_privileged
plugin auth.username
plugin auth.password`
