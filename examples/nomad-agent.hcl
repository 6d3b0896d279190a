# Tranche's plugins in the configuration of a Nomad client. Their binaries are in plugin_dir. Every option is optional; the
# values shown are the defaults.

plugin "nomad-device-tranche" {
  config {
    mode               = "slice" # docs/device.md has the other modes, and gpu blocks for single GPUs
    slice_memory       = "1GiB"  # GPU memory of one slice
    ignored_gpu_ids    = []      # UUIDs of GPUs that are not offered to Nomad
    fingerprint_period = "1m"
    driver_root        = "/"
  }
}

plugin "nomad-driver-tranche" {
  config {
    containerd_address  = "/run/containerd/containerd.sock"
    driver_root         = "/"
    shadow_dir          = "/usr/lib/tranche"      # or ../lib/tranche beside the plugin's binary, if it exists
    cli_path            = "/usr/bin/tranche"      # or beside the plugin's binary
    hook_path           = "/usr/bin/tranche-hook" # or beside the plugin's binary
    gpu_host_memory_max = "0"                     # maximum of a task's gpu_host_memory, such as "16GiB"

    gpu_compute_max_share     = 0     # maximum of a task's gpu_compute.share in percent, if its slices are worth less
    gpu_compute_high_priority = false # tasks may have the priority "high"
  }
}

# Without this, Nomad publishes no statistics of tasks.
telemetry {
  publish_allocation_metrics = true
}
