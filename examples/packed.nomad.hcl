# A job that prefers the fullest GPU with room for it, so that other GPUs stay free for jobs that need much of one.
# docs/device.md explains this under "Packing", and when it helps.

variable "image" {
  type        = string
  default     = "tranche.local/gpu-probe:demo"
  description = "An image that holds gpu-probe (see gpu-probe/)."
}

variable "slices" {
  type    = number
  default = 8
}

variable "slices_per_gpu" {
  type        = number
  default     = 140
  description = "What the node's GPUs have: their attribute `slices`. An H200 has 140 of 1 GiB."
}

job "packed" {
  group "probe" {
    task "probe" {
      driver = "containerd"

      config {
        image   = var.image
        command = "gpu-probe"
        args    = ["fill"]
      }

      resources {
        cpu    = 50
        memory = 128

        device "nvidia/slice" {
          count = var.slices

          # One for the lower end of each of the eight steps of slices_used: the fuller a GPU, the more of them match, and
          # Nomad takes the GPU with the most matches.
          dynamic "affinity" {
            for_each = [for eighth in range(8) : ceil(eighth * var.slices_per_gpu / 8)]
            content {
              attribute = "${device.attr.unique.slices_used}"
              operator  = ">"
              value     = "${affinity.value}"
              weight    = 50
            }
          }
        }
      }
    }
  }
}
