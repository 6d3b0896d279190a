# What a Nomad client needs for Tranche, to be added to its configuration. The plugins' binaries lie in plugin_dir. Every
# option has a default, which is what is shown, unless its comment says otherwise.

plugin "nomad-device-tranche" {
  config {
    slice_memory       = "1GiB" # GPU memory of one slice
    ignored_gpu_ids    = []     # UUIDs of GPUs that are not for Nomad
    fingerprint_period = "1m"
    driver_root        = "/"
  }
}

plugin "nomad-driver-tranche" {
  config {
    containerd_address = "/run/containerd/containerd.sock"
    driver_root        = "/"
    shadow_dir         = "/usr/lib/tranche"
    hook_path          = "/usr/bin/tranche-hook"
  }
}
