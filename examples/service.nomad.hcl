# A web server with the options of a typical service. Its node allows named volumes, as in containerd-agent.hcl.

variable "image" {
  type    = string
  default = "busybox:1.36"
}

job "web" {
  group "web" {
    network {
      mode = "bridge"

      port "http" {
        to = 8080
      }
    }

    task "server" {
      driver       = "containerd"
      user         = "nobody"
      kill_timeout = "10s"

      config {
        image              = var.image
        image_pull_timeout = "10m"

        command  = "httpd"
        args     = ["-f", "-p", "8080", "-h", "/srv"]
        work_dir = "/tmp"
        hostname = "web"

        cpu_hard_limit  = true
        pids_limit      = 64
        shm_size        = "16MiB"
        readonly_rootfs = true
        cap_drop        = ["all"]
        security_opt    = ["no-new-privileges"]
        tmpfs           = ["/tmp:size=16m"]
        extra_hosts     = ["database:10.0.0.7"]

        sysctl = {
          "net.core.somaxconn" = "1024"
        }

        ulimit {
          nofile = "1024:4096"
        }

        labels {
          team = "web"
        }

        # A directory of the task: the template below fills it.
        mount {
          type     = "bind"
          source   = "local/site"
          target   = "/srv"
          readonly = true
        }

        # A volume of the node, which outlives the task.
        mount {
          type   = "volume"
          source = "web-cache"
          target = "/var/cache/web"
        }
      }

      template {
        data        = "<h1>Hello from {{ env \"NOMAD_ALLOC_ID\" }}</h1>\n"
        destination = "local/site/index.html"
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
