//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/e2e/node"
)

// lan is a CNI network as an operator writes it: its tasks get an address of 10.77.0.0/24.
const lan = `{
  "cniVersion": "0.4.0",
  "name": "lan",
  "plugins": [
    {
      "type": "ptp",
      "ipMasq": true,
      "ipam": {
        "type": "host-local",
        "subnet": "10.77.0.0/24",
        "routes": [{"dst": "0.0.0.0/0"}]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`

// TestNetworks covers the networks that Nomad makes for a group: whose tasks are in it, and who reaches them.
func TestNetworks(t *testing.T) {
	n := startNode(t, func(c *node.Config) {
		dir := filepath.Join(c.Dir, "cni")
		must.NoError(t, os.MkdirAll(dir, 0o755))
		must.NoError(t, os.WriteFile(filepath.Join(dir, "lan.conflist"), []byte(lan), 0o644))
	})
	t.Run("cni", func(t *testing.T) { testCNI(t, n) })
	t.Run("ports", func(t *testing.T) { testPorts(t, n) })
	t.Run("names", func(t *testing.T) { testNames(t, n) })
	t.Run("sidecar", func(t *testing.T) { testSidecar(t, n) })
}

// serve is a script that answers every request with a line of text.
func serve(text string, port int) string {
	return fmt.Sprintf("mkdir -p /local/www; echo %q > /local/www/index.html; "+
		"ifconfig eth0 | grep 'inet addr'; cat /etc/hosts; echo serving; exec httpd -f -p %d -h /local/www", text, port)
}

// testCNI runs a task in a network of the operator's. What it serves is reached by its address, from the host, and by a
// mapped port.
func testCNI(t *testing.T, n *node.Node) {
	start(t, n, task{
		job: "cni", command: "sh", args: []string{"-c", serve("from the lan", 8080)},
		groupExtra: "network {\n mode = \"cni/lan\"\n port \"http\" {\n to = 8080\n }\n}",
	})
	alloc := running(t, n, "cni")
	saysLine(t, n, alloc.ID, "serving")
	out := logs(t, n, alloc.ID, "stdout")
	_, rest, found := strings.Cut(out, "inet addr:")
	must.True(t, found, must.Sprint(out))
	address := strings.Fields(rest)[0]
	must.StrHasPrefix(t, "10.77.0.", address)
	must.StrContains(t, out, "\n"+address+" ", must.Sprint("the task's own name is not in its /etc/hosts"))
	must.Eq(t, "from the lan\n", get(t, net.JoinHostPort(address, "8080")))
	must.Eq(t, "from the lan\n", get(t, mappedPort(t, n, alloc.ID, "http")))
	must.NoError(t, n.StopJob(deadline(t), "cni"))
}

// testPorts maps a port of the host to a task of a group in bridge mode.
func testPorts(t *testing.T, n *node.Node) {
	start(t, n, task{
		job: "ports", command: "sh", args: []string{"-c", serve("through the port", 8080)},
		groupExtra: "network {\n mode = \"bridge\"\n port \"http\" {\n to = 8080\n }\n}",
	})
	alloc := running(t, n, "ports")
	saysLine(t, n, alloc.ID, "serving")
	address := mappedPort(t, n, alloc.ID, "http")
	must.Eq(t, "through the port\n", get(t, address))
	must.NoError(t, n.StopJob(deadline(t), "ports"))
	_, err := net.DialTimeout("tcp", address, time.Second)
	must.Error(t, err, must.Sprint("the port is mapped after the task's end"))
}

// mappedPort is the address on the host that Nomad mapped for a port of a group.
func mappedPort(t *testing.T, n *node.Node, allocID, label string) string {
	t.Helper()
	alloc, _, err := n.Agent.API.Allocations().Info(allocID, nil)
	must.NoError(t, err)
	for _, port := range alloc.AllocatedResources.Shared.Ports {
		if port.Label == label {
			return net.JoinHostPort(port.HostIP, fmt.Sprint(port.Value))
		}
	}
	t.Fatalf("the allocation has no port %q", label)
	return ""
}

// get asks a server for its first page, once it listens.
func get(t *testing.T, address string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(deadline(t), 20*time.Second)
	defer cancel()
	for {
		text, err := tryGet(ctx, address)
		if err == nil {
			return text
		}
		if ctx.Err() != nil {
			t.Fatalf("ask %s: %v", address, err)
		}
		// Nothing tells when a process has begun to listen.
		time.Sleep(50 * time.Millisecond)
	}
}

func tryGet(ctx context.Context, address string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/", nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	return string(text), err
}

// testNames is about what a task finds in /etc/hosts and /etc/resolv.conf. The network block's own hostname is not here:
// Nomad 1.11 refuses it for every driver but the docker driver that it has built in.
func testNames(t *testing.T, n *node.Node) {
	out := completed(t, n, task{
		job: "names", command: "sh", args: []string{"-c", "hostname; cat /etc/hosts /etc/resolv.conf"},
		groupExtra: `network {
  mode = "bridge"
  dns {
    servers  = ["192.0.2.53"]
    searches = ["group.example"]
  }
}`,
		configExtra: `extra_hosts = ["db:10.0.0.7", "six:[fd00::7]"]
dns_search_domains = ["task.example"]
dns_options = ["ndots:3"]`,
	})
	hostname, _, _ := strings.Cut(out, "\n")
	for _, want := range []string{
		"\n172.26.", " " + hostname + "\n10.0.0.7 db\nfd00::7 six\n",
		"nameserver 192.0.2.53\n", "search task.example\n", "options ndots:3\n",
	} {
		must.StrContains(t, out, want)
	}
	must.StrNotContains(t, out, "group.example")
}

// mesh is a group as Consul's service mesh makes it: a proxy that starts before the main task and stays beside it, with its
// bootstrap file in its own secrets directory, a Unix socket in the alloc directory, and the group's loopback interface
// between the two. There is no Consul here: what the driver has to give is shown with busybox's programs in the place
// of Envoy.
const mesh = `
job "mesh" {
  type = "batch"
  group "g" {
    restart {
      attempts = 0
      mode     = "fail"
    }
    network {
      mode = "bridge"
    }
    task "init" {
      driver = "containerd"
      lifecycle {
        hook = "prestart"
      }
      config {
        image   = "%[1]s"
        command = "sh"
        args    = ["-c", "echo init >> /alloc/order"]
      }
    }
    task "proxy" {
      driver = "containerd"
      lifecycle {
        hook    = "prestart"
        sidecar = true
      }
      template {
        data        = "bootstrapped"
        destination = "secrets/envoy_bootstrap.json"
      }
      config {
        image   = "%[1]s"
        command = "sh"
        args = ["-c", <<EOT
readlink /proc/self/ns/net > /alloc/proxy.ns
ln -s /alloc/mesh.sock /dev/log
mkdir /local/www
cp /secrets/envoy_bootstrap.json /local/www/index.html
httpd -p 127.0.0.1:19001 -h /local/www
exec syslogd -n -O /alloc/received
EOT
        ]
      }
    }
    task "t" {
      driver = "containerd"
      config {
        image   = "%[1]s"
        command = "sh"
        args = ["-c", <<EOT
echo main >> /alloc/order
until [ -S /alloc/mesh.sock ] && wget -qO- http://127.0.0.1:19001/; do sleep 0.1; done
echo
[ "$(readlink /proc/self/ns/net)" = "$(cat /alloc/proxy.ns)" ] && echo one network
ls /sys/class/net | tr '\n' ' '
ls /secrets | grep bootstrap
ln -s /alloc/mesh.sock /dev/log
logger over the socket
until grep -o 'over the socket' /alloc/received; do sleep 0.1; done
EOT
        ]
      }
    }
    task "last" {
      driver = "containerd"
      lifecycle {
        hook = "poststop"
      }
      config {
        image   = "%[1]s"
        command = "sh"
        args    = ["-c", "echo last >> /alloc/order; cat /alloc/order"]
      }
    }
  }
}
`

func testSidecar(t *testing.T, n *node.Node) {
	job, err := n.ParseJob(fmt.Sprintf(mesh, probeImage))
	must.NoError(t, err)
	_, err = n.Run(deadline(t), job)
	must.NoError(t, err)
	alloc, err := n.WaitStatus(deadline(t), "mesh", "complete")
	must.NoError(t, err)
	// The proxy's secrets are its own: ls shows none.
	must.Eq(t, "bootstrapped\none network\neth0 lo over the socket\n", logs(t, n, alloc.ID, "stdout"))
	order, err := n.Logs(deadline(t), alloc.ID, "last", "stdout")
	must.NoError(t, err)
	must.Eq(t, "init\nmain\nlast\n", order)
}
