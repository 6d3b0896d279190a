# Permissions of tasks and garbage collection, for a client's configuration instead of the driver's block in
# nomad-agent.hcl. service.nomad.hcl runs on such a node. docs/driver.md lists every option.

plugin "nomad-driver-tranche" {
  config {
    # Images.
    snapshotter           = "overlayfs"
    registry_hosts_dir    = "/etc/containerd/certs.d" # a hosts.toml for each registry: mirrors, certificate authorities
    image_pull_timeout    = "10m"
    pull_activity_timeout = "2m"

    auth {
      config = "/etc/nomad.d/registries.json" # as `docker login` writes it
    }

    # Garbage collection.
    gc {
      image       = true
      image_delay = "1h"

      dangling_containers {
        period         = "5m"
        creation_grace = "5m"
      }
    }

    # Permissions of tasks. Most tasks need none of them.
    volumes {
      enabled = true # named volumes and host paths
    }

    allow_caps = ["chown", "dac_override", "fowner", "fsetid", "kill", "net_bind_service", "setfcap", "setgid", "setpcap",
      "setuid", "sys_chroot", "net_raw"]
    allow_devices         = ["/dev/fuse", "nvidia.com/gpu=*"]
    allow_runtimes        = ["crun"]
    allow_host_namespaces = []
    allow_privileged      = false
    userns_range          = "2000000:1000000" # for tasks with userns_mode = "auto"
    pids_limit            = 4096
    gpu_host_memory_max   = "16GiB"

    extra_labels = ["job_name", "task_name"]
  }
}
