# Two tasks that share a GPU in turns. Each sees all of its memory, and nothing holds one to a part of it: these take what
# they need, and leave the other its own.

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
          count = 1 # more would give a task no more of the GPU
        }
      }
    }
  }
}
