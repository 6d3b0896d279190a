# Two tasks of one tenant share a MIG instance by slices; a task of another tenant is on the other instance, which the first
# tenant's cannot affect. The node is as in mig-shared-agent.hcl.

variable "image" {
  type        = string
  default     = "tranche.local/gpu-probe:demo"
  description = "An image that holds gpu-probe (see gpu-probe/)."
}

job "mig-shared" {
  group "tenant" {
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
          count = 8

          constraint {
            attribute = "${device.attr.mig_profile}"
            value     = "3g.20gb"
          }
        }
      }
    }
  }

  group "other" {
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
          count = 4

          constraint {
            attribute = "${device.attr.mig_profile}"
            value     = "2g.10gb"
          }
        }
      }
    }
  }
}
