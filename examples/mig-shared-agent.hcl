# Tranche's device plugin on a node whose first GPU is divided among tenants by MIG, and each tenant's instance among its tasks
# by slices: docs/mig.md.

plugin "nomad-device-tranche" {
  config {
    mode    = "slice"  # the other GPUs
    compute = "shares" # slices are parts of the time, too: docs/compute.md

    gpu "index:0" {
      mode         = "mig"
      slice_memory = "1GiB"

      mig {
        profiles = ["3g.20gb", "2g.10gb"]
        mode     = "slice"
      }
    }
  }
}
