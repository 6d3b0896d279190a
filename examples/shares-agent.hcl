# Tranche's plugins on a node whose GPUs' time is shared in proportion to slices: docs/compute.md.

plugin "nomad-device-tranche" {
  config {
    mode    = "slice"
    compute = "shares"
  }
}

plugin "nomad-driver-tranche" {
  config {
    gpu_compute_max_share     = 80   # a task may state a share of up to 80%, whatever its slices are worth
    gpu_compute_high_priority = true # and have the priority "high"
  }
}
