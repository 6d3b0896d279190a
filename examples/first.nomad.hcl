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
          count = 8 # slices of 1 GiB, all on one GPU

          # GPU 0, so that both jobs share it. Without this, any GPU with 8 free slices can be chosen.
          constraint {
            attribute = "${device.attr.index}"
            value     = "0"
          }
        }
      }
    }
  }
}
