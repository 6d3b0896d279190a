# A node with eight GPUs of several generations, each in the mode that its jobs need, for a client's configuration instead of
# the device plugin's block in nomad-agent.hcl. The first gpu block that matches a GPU applies to it; the options outside of
# the blocks apply to all others. docs/device.md lists every option.

plugin "nomad-device-tranche" {
  config {
    mode         = "slice" # constraints.nomad.hcl
    slice_memory = "1GiB"
    max_slices   = 128 # the most slices of one device block

    # Permanent MIG instances of these sizes: mig.nomad.hcl.
    gpu "index:0" {
      mode = "mig"
      mig { profiles = ["3g.20gb", "2g.10gb", "1g.5gb"] }
    }

    # MIG instances that are created for tasks: mig-slices.nomad.hcl.
    gpu "index:1" {
      mode         = "mig"
      slice_memory = "4GiB"
    }

    # Tasks that compute at the same time: mps.nomad.hcl.
    gpu "index:2" { mode = "mps" }

    # A whole GPU for one task at a time: exclusive.nomad.hcl.
    gpu "index:3" { mode = "exclusive" }

    # Shared in turns without a limit, for small tasks: timeslice.nomad.hcl.
    gpu "model:Tesla T4" {
      mode     = "timeslice"
      replicas = 4
    }
  }
}
