# A program that gets 8 GiB of one GPU.
# second.nomad.hcl runs beside it on the same GPU.

variable "image" {
  type        = string
  default     = "tranche.local/gpu-probe:demo"
  description = "An image that holds gpu-probe (see gpu-probe/)."
}

job "first" {
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
          count = 8 # slices of 1 GiB, all of one GPU

          # Take GPU 0, so that the two jobs meet there; without it any GPU with 8 free slices will do.
          constraint {
            attribute = "${device.attr.index}"
            value     = "0"
          }
        }
      }
    }
  }
}
