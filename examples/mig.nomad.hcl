# A MIG instance of a size that the node has declared, with its own memory, compute and faults. The name consists of the
# model and the driver's name for the size, as with nomad-device-nvidia.

variable "image" {
  type        = string
  default     = "tranche.local/gpu-probe:demo"
  description = "An image that holds gpu-probe (see gpu-probe/)."
}

job "mig" {
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

        device "nvidia/gpu/NVIDIA A100-SXM4-40GB MIG 3g.20gb" {
          count = 1
        }
      }
    }
  }
}
