# A MIG instance of a size that the node has declared, with memory, computing and faults of its own. The name is the model's
# and the driver's for the size, as with nomad-device-nvidia.

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
