# A whole GPU for one task. Jobs for nomad-device-nvidia run unchanged. On a node that also offers MIG instances, which have
# the same type, the constraint selects whole GPUs.

variable "image" {
  type        = string
  default     = "tranche.local/gpu-probe:demo"
  description = "An image that holds gpu-probe (see gpu-probe/)."
}

job "exclusive" {
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

        device "nvidia/gpu" {
          count = 1

          constraint {
            attribute = "${device.attr.isolation}"
            value     = "exclusive"
          }
        }
      }
    }
  }
}
