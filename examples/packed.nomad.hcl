# A job that prefers the GPU with the lowest index on which it fits, so that other GPUs stay free for jobs that need much of one.
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

variable "gpus" {
  type        = number
  default     = 8
  description = "At least as many as a node has."
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

          # Always true: whichever GPU it is, the node's score is nearly the same.
          affinity {
            attribute = "${device.attr.index}"
            operator  = ">="
            value     = "0"
            weight    = 100
          }

          # The lower a GPU's index, the more of these match, and Nomad takes the GPU with the most matches.
          dynamic "affinity" {
            for_each = range(1, var.gpus)
            content {
              attribute = "${device.attr.index}"
              operator  = "<"
              value     = "${affinity.value}"
              weight    = 1
            }
          }
        }
      }
    }
  }
}
