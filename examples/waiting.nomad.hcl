# A job that needs more slices of GPU 0 than are free while the others run. It is pending until one of them stops.

variable "image" {
  type    = string
  default = "tranche.local/gpu-probe:demo"
}

variable "slices" {
  type        = number
  default     = 128
  description = "More than are free on GPU 0 (an H200 has 140) while the other examples run, and as many as are when second stops."
}

job "waiting" {
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

          constraint {
            attribute = "${device.attr.index}"
            value     = "0"
          }
        }
      }
    }
  }
}
