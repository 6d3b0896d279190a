# Two tasks on one GPU: the small one has 30% of its time and the large one 70% while both compute, each all of it while the
# other does not. The node has compute = "shares", as in shares-agent.hcl.

variable "image" {
  type        = string
  default     = "tranche.local/gpu-probe:demo"
  description = "An image that holds gpu-probe (see gpu-probe/)."
}

job "shares" {
  group "small" {
    task "probe" {
      driver = "containerd"

      config {
        image   = var.image
        command = "gpu-probe"
        args    = ["work"]

        gpu_compute {
          share = 30
        }
      }

      resources {
        cpu    = 50
        memory = 128

        device "nvidia/slice" {
          count = 4

          constraint {
            attribute = "${device.attr.index}"
            value     = "0"
          }
        }
      }
    }
  }

  group "large" {
    task "probe" {
      driver = "containerd"

      config {
        image   = var.image
        command = "gpu-probe"
        args    = ["work"]

        gpu_compute {
          share = 70
        }
      }

      resources {
        cpu    = 50
        memory = 128

        device "nvidia/slice" {
          count = 4

          constraint {
            attribute = "${device.attr.index}"
            value     = "0"
          }
        }
      }
    }
  }
}
