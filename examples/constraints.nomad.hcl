# Slices of a certain kind of GPU: requirements are constraints, and preferences are affinities. If the nodes also offer
# slices with MIG or MPS, the constraint on isolation selects the mode.

variable "image" {
  type        = string
  default     = "tranche.local/gpu-probe:demo"
  description = "An image that holds gpu-probe (see gpu-probe/)."
}

job "constraints" {
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
          count = 16

          constraint {
            attribute = "${device.attr.isolation}"
            value     = "memory"
          }

          constraint {
            attribute = "${device.attr.compute_capability}"
            operator  = ">="
            value     = "9.0"
          }

          constraint {
            attribute = "${device.attr.memory}"
            operator  = ">="
            value     = "120 GiB"
          }

          constraint {
            attribute = "${device.attr.sm_count}"
            operator  = ">="
            value     = "128"
          }

          constraint {
            attribute = "${device.attr.driver_version}"
            operator  = "version"
            value     = ">= 570"
          }

          affinity {
            attribute = "${device.attr.index}"
            value     = "6"
            weight    = 50
          }
        }
      }
    }
  }
}
