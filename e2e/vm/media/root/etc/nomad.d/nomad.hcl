name      = "vm"
data_dir  = "/opt/nomad"
bind_addr = "127.0.0.1"

disable_update_check = true

# The tests outside reach it through qemu's network.
addresses {
  http = "0.0.0.0"
}

advertise {
  http = "10.0.2.15"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}

server {
  enabled          = true
  bootstrap_expect = 1
}

client {
  enabled           = true
  network_interface = "lo"
  cni_path          = "/usr/lib/cni"

  options = {
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean"
  }
}
