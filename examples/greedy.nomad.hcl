# A program that allocates without end. It gets 4 GiB, and every further allocation is refused.

variable "image" {
  type    = string
  default = "tranche.local/gpu-probe:demo"
}

job "greedy" {
  group "probe" {
    task "probe" {
      driver = "containerd"

      config {
        image   = var.image
        command = "gpu-probe"
        args    = ["greedy"]
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
