# A node with eight GPUs of several generations, each shared in the way that its jobs need, to be added to a client's
# configuration instead of the device plugin's block in nomad-agent.hcl. The first gpu block that matches a GPU counts; what
# none matches is shared as is said outside of them. docs/device.md has every option.

plugin "nomad-device-tranche" {
  config {
    mode         = "slice" # constraints.nomad.hcl
    slice_memory = "1GiB"
    max_slices   = 128 # most that one device block of a task may have

    # Cut up for good, into instances of these sizes: mig.nomad.hcl.
    gpu "index:0" {
      mode = "mig"
      mig { profiles = ["3g.20gb", "2g.10gb", "1g.5gb"] }
    }

    # Cut into instances as tasks come and go: mig-slices.nomad.hcl.
    gpu "index:1" {
      mode         = "mig"
      slice_memory = "4GiB"
    }

    # Computed on side by side: mps.nomad.hcl.
    gpu "index:2" { mode = "mps" }

    # Whole, for one task at a time: exclusive.nomad.hcl.
    gpu "index:3" { mode = "exclusive" }

    # Shared in turns, for small tasks that know what they need: timeslice.nomad.hcl.
    gpu "model:Tesla T4" {
      mode     = "timeslice"
      replicas = 4
    }
  }
}
