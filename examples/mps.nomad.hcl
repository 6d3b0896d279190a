# Two tasks whose kernels run at the same time on one GPU, with NVIDIA's Multi-Process Service: 20 GiB for each, and the same
# share of the multiprocessors.

variable "image" {
  type        = string
  default     = "tranche.local/gpu-probe:demo"
  description = "An image that holds gpu-probe (see gpu-probe/)."
}

job "mps" {
  group "probe" {
    count = 2

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
          count = 20

          constraint {
            attribute = "${device.attr.isolation}"
            value     = "mps"
          }
        }
      }
    }
  }
}
