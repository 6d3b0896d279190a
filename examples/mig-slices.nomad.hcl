# 16 GiB of a GPU as a MIG instance that is made for this task, with memory, computing and faults of its own. The node's
# slices are of 4 GiB there; the smallest instance that holds four of them is taken, and goes when the task is gone.

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
