# 16 GiB of a GPU as a MIG instance that is created for this task, with its own memory, compute and faults. Slices have
# 4 GiB on this node: the task gets the smallest instance that holds four of them. It is destroyed after the task.

variable "image" {
  type        = string
  default     = "tranche.local/gpu-probe:demo"
  description = "An image that holds gpu-probe (see gpu-probe/)."
}

job "mig-slices" {
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
          count = 4

          constraint {
            attribute = "${device.attr.isolation}"
            value     = "hardware"
          }
        }
      }
    }
  }
}
