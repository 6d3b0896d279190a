# Installs or upgrades Tranche's package on the cluster's nodes, and restarts Nomad where it runs other plugins than are installed then.
# Tasks keep running, so no node is drained. docs/install.md describes it.

variable "package" {
  type        = string
  description = "URL of the package, or its path on every node"
}

variable "checksum" {
  type        = string
  default     = ""
  description = "checksum of a package that is fetched, such as sha256:0123…"
}

variable "nodes" {
  type        = string
  default     = ".*"
  description = "regular expression for the names of the nodes"
}

locals {
  fetched = substr(var.package, 0, 1) != "/"
}

job "tranche-rollout" {
  type        = "sysbatch"
  datacenters = ["*"]
  node_pool   = "all"

  constraint {
    attribute = "${node.unique.name}"
    operator  = "regexp"
    value     = var.nodes
  }

  group "node" {
    # The task may be run again at any time: it does only what is missing.
    restart {
      attempts = 1
      delay    = "15s"
      mode     = "fail"
    }

    task "package" {
      driver       = "raw_exec"
      kill_timeout = "30s"

      dynamic "artifact" {
        for_each = local.fetched ? [var.package] : []
        content {
          source = artifact.value
          dynamic "options" {
            for_each = var.checksum == "" ? [] : [var.checksum]
            content {
              checksum = options.value
            }
          }
        }
      }

      config {
        command = "/bin/sh"
        args = ["-eu", "-c", <<-EOS
          package=$1
          [ -n "$package" ] || package=$(echo "$NOMAD_TASK_DIR"/tranche*)
          [ -f "$package" ] || { echo "there is no file $package on this node" >&2; exit 1; }
          case "$package" in
          *.deb)
            DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends --allow-downgrades \
              -o DPkg::Lock::Timeout=300 -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold "$package"
            ;;
          *.rpm)
            rpm --query --quiet "$(rpm --query --package "$package")" || rpm --upgrade --oldpackage "$package"
            ;;
          *)
            echo "the package has to be a deb or an rpm, got $package" >&2
            exit 1
            ;;
          esac
          tranche install nomad --restart
          tranche doctor
          EOS
          , "rollout", local.fetched ? "" : var.package
        ]
      }

      resources {
        cpu    = 100
        memory = 512
      }
    }
  }
}
