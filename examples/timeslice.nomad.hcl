# Two tasks that share a GPU in turns. Each sees all of its memory, without a limit: these take only what they need.

variable "image" {
  type        = string
  default     = "tranche.local/gpu-probe:demo"
  description = "An image that holds gpu-probe (see gpu-probe/)."
}

job "timeslice" {
  group "probe" {
    count = 2

    task "probe" {
      driver = "containerd"

      config {
        image   = var.image
        command = "gpu-probe"
        args    = ["take", "4096"]
      }

      resources {
        cpu    = 50
        memory = 128

        device "nvidia/timeslice" {
          count = 1 # a higher count would be refused
        }
      }
    }
  }
}
