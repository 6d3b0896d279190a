# The pages of all nodes: tranche fleet, on any node that has Tranche's package. Its certificate and key are in Nomad's variables:
#
#   nomad var put nomad/jobs/tranche-fleet certificate=@fleet.crt key=@fleet.key
#
# It reaches Nomad by the socket that each task has, needs no ACL policy, and runs as nobody. Where ACLs are off, that socket answers
# no viewer: state the address of an agent, such as NOMAD_ADDR = "http://127.0.0.1:4646".

variable "tranche" {
  type    = string
  default = "/usr/bin/tranche"
}

# The name by which browsers find it; that of the certificate.
variable "host" {
  type    = string
  default = "tranche.example.com"
}

# Where jobs and allocations are linked to.
variable "nomad_ui" {
  type    = string
  default = "https://nomad.example.com:4646"
}

job "tranche-fleet" {
  group "pages" {
    network {
      port "https" {
        static = 9761
      }
    }

    service {
      name     = "tranche-fleet"
      port     = "https"
      provider = "nomad"

      check {
        type            = "http"
        protocol        = "https"
        tls_skip_verify = true
        path            = "/-/healthy"
        interval        = "30s"
        timeout         = "5s"
      }
    }

    task "fleet" {
      driver = "raw_exec"
      user   = "nobody"

      config {
        command = var.tranche
        args = [
          "fleet",
          "--listen", "0.0.0.0:${NOMAD_PORT_https}",
          "--web-config", "${NOMAD_SECRETS_DIR}/web.yml",
          "--host", var.host,
          "--nomad-ui", var.nomad_ui,
        ]
      }

      env {
        NOMAD_ADDR = "unix://${NOMAD_SECRETS_DIR}/api.sock"
      }

      # All three are read again at each connection.
      template {
        destination = "secrets/web.yml"
        change_mode = "noop"
        data        = <<-EOT
          tls_server_config:
            cert_file: fleet.crt
            key_file: fleet.key
        EOT
      }

      template {
        destination = "secrets/fleet.crt"
        change_mode = "noop"
        data        = "{{ with nomadVar \"nomad/jobs/tranche-fleet\" }}{{ .certificate }}{{ end }}"
      }

      template {
        destination = "secrets/fleet.key"
        change_mode = "noop"
        perms       = "0600"
        uid         = 65534 # nobody
        data        = "{{ with nomadVar \"nomad/jobs/tranche-fleet\" }}{{ .key }}{{ end }}"
      }

      resources {
        cpu    = 200
        memory = 256
      }
    }
  }
}
