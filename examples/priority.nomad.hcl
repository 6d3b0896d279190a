# A service whose requests come first, and a job that has what is left of the GPU's time, but never more than 80%. The node
# has compute = "shares" and allows high priority, as in shares-agent.hcl.

variable "image" {
  type        = string
  default     = "tranche.local/gpu-probe:demo"
  description = "An image that holds gpu-probe (see gpu-probe/)."
}

job "priority" {
  group "service" {
    task "probe" {
      driver = "containerd"

      config {
        image   = var.image
        command = "gpu-probe"
        args    = ["work"]

        gpu_compute {
          priority = "high"
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

  group "batch" {
    task "probe" {
      driver = "containerd"

      config {
        image   = var.image
        command = "gpu-probe"
        args    = ["work"]

        gpu_compute {
          max      = 80
          priority = "best-effort"
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
