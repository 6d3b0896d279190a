# What a Nomad client needs for Tranche, to be added to its configuration. The plugins' binaries lie in plugin_dir. Every
# option has a default, which is what is shown.

plugin "nomad-device-tranche" {
  config {
    mode               = "slice" # how GPUs are shared: docs/device.md has the other ways, and how to say so for each GPU
    slice_memory       = "1GiB"  # GPU memory of one slice
    ignored_gpu_ids    = []      # UUIDs of GPUs that are not for Nomad
    fingerprint_period = "1m"
    driver_root        = "/"
  }
}

plugin "nomad-driver-tranche" {
  config {
    containerd_address  = "/run/containerd/containerd.sock"
    driver_root         = "/"
    shadow_dir          = "/usr/lib/tranche"      # unless ../lib/tranche beside the plugin's binary is there
    cli_path            = "/usr/bin/tranche"      # unless it lies beside the plugin's binary
    hook_path           = "/usr/bin/tranche-hook" # unless tranche-hook lies beside the plugin's binary
    gpu_host_memory_max = "0"                     # most that a task may ask for with gpu_host_memory, such as "16GiB"
  }
}
