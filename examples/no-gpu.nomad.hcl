# The same image without a device block: the program finds no GPU at all.

variable "image" {
  type    = string
  default = "tranche.local/gpu-probe:demo"
}

job "no-gpu" {
  type = "batch"

  group "probe" {
    restart {
      attempts = 0
    }

    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "probe" {
      driver = "containerd"

      config {
        image   = var.image
        command = "gpu-probe"
        args    = ["look"]
      }

      resources {
        cpu    = 50
        memory = 64
      }
    }
  }
}
