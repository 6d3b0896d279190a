package mps

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
)

// MPS v3 comes with driver 615. Its daemon has named servers, and a server has namespaces, each with limits and a socket of its own:
// the socket by which a client comes says what it may have. The commands are on NVIDIA's page "MPS v3 Interface", and the sockets on
// "MPS v3 Namespaces" (https://docs.nvidia.com/deploy/mps/615/). A daemon of ours has one server, and a namespace for each claim.

const (
	serverName = "gpu"
	// defaultNamespace is the namespace that each server has. No container has its socket.
	defaultNamespace = "default"
	// longestName is as long as the name of a namespace, which is a claim's ID.
	longestName = "01234567"
	// noheader is the format of lists for programs.
	noheader = " --format=csv,noheader"
)

// Namespace is what the clients of one claim may have of a GPU.
type Namespace struct {
	// Name is the claim's ID.
	Name string
	// Percentage is the most of the multiprocessors that each of them may have.
	Percentage int
	// LimitBytes is the most memory that each of them may have; 0 if the driver holds the container to its limit. It is in free
	// memory as programs see it, and not in the total.
	LimitBytes uint64
}

// Assign gives the daemon of a GPU these namespaces and no others, and publishes each socket when the limits of its namespace are
// there: without any, a namespace has all of the GPU. The daemon has namespaces, see Status, and a server.
func (m *Manager) Assign(ctx context.Context, uuid string, wanted []Namespace) error {
	daemon, err := m.control(uuid)
	if err != nil {
		return err
	}
	there, err := daemon.namespaces(ctx)
	if err != nil {
		return err
	}
	d := m.dirs(uuid)
	if err := removeNamespaces(ctx, d, daemon, there, wanted); err != nil {
		return err
	}
	changed := false
	for _, n := range wanted {
		if percentage, ok := there[n.Name]; !ok || percentage != n.Percentage {
			changed = true
			if err := daemon.define(ctx, n, ok); err != nil {
				return err
			}
		}
	}
	if changed {
		if there, err = daemon.namespaces(ctx); err != nil {
			return err
		}
	}
	return publishNamespaces(d, there, wanted)
}

// removeNamespaces removes the namespaces of claims that are gone, and the directories of those that another daemon had.
func removeNamespaces(ctx context.Context, d dirs, daemon *control, there map[string]int, wanted []Namespace) error {
	gone := func(name string) bool {
		return name != defaultNamespace && !slices.ContainsFunc(wanted, func(n Namespace) bool { return n.Name == name })
	}
	for _, name := range d.published() {
		if gone(name) {
			_ = os.RemoveAll(d.namespace(name))
		}
	}
	for name := range there {
		if !gone(name) {
			continue
		}
		if _, err := daemon.run(ctx, "namespace delete "+name+" --server="+serverName+" --force"); err != nil {
			return err
		}
	}
	return nil
}

func publishNamespaces(d dirs, there map[string]int, wanted []Namespace) error {
	for _, n := range wanted {
		if there[n.Name] != n.Percentage {
			return fmt.Errorf("the MPS namespace %s has %d %% of the multiprocessors instead of %d %%", n.Name, there[n.Name], n.Percentage)
		}
		err := os.MkdirAll(d.namespace(n.Name), 0o755)
		if err == nil {
			err = publishFile(d.namespaceSocket(n.Name), d.namespace(n.Name))
		}
		if err != nil {
			return fmt.Errorf("publish the MPS namespace %s: %w", n.Name, err)
		}
	}
	return nil
}

// published returns the namespaces that have a directory for containers.
func (d dirs) published() []string {
	entries, _ := os.ReadDir(d.namespace(""))
	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// knowsV3 reports whether the program is one with MPS v3: its help lists the modules of commands.
func (c *control) knowsV3(ctx context.Context) bool {
	text, err := c.exec(ctx, "-h", nil, "-p", "3", "-h")
	return err == nil && strings.Contains(text, "namespace") && strings.Contains(text, "server")
}

// rows returns the rows of a list. Only a last column, such as a command line, may have commas.
func (c *control) rows(ctx context.Context, command string) ([][]string, error) {
	text, err := c.run(ctx, command+noheader)
	if err != nil {
		return nil, err
	}
	var rows [][]string
	for line := range strings.Lines(text) {
		rows = append(rows, strings.Split(strings.TrimSpace(line), ","))
	}
	return rows, nil
}

// readyServers returns the process ID of the server. One whose GPU is missing is not listed, although it could be created.
func (c *control) readyServers(ctx context.Context) ([]int, error) {
	rows, err := c.rows(ctx, "server list")
	var pids []int
	for _, row := range rows {
		if len(row) < 4 || row[0] != serverName || row[3] != "Ready" {
			continue
		}
		if pid, err := strconv.Atoi(row[2]); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// createServer returns what the daemon says. It refuses if the server is there and not ready yet, which the list shows later.
func (c *control) createServer(ctx context.Context) string {
	said, err := c.run(ctx, "server create "+serverName+" --uid="+strconv.Itoa(os.Geteuid())+" --allowed-devices="+c.uuid)
	if err != nil {
		return err.Error()
	}
	return said
}

// namespaceClients returns the process IDs of the server's clients. One has a row for each of its GPUs.
func (c *control) namespaceClients(ctx context.Context) ([]int, error) {
	rows, err := c.rows(ctx, "client list --server="+serverName)
	var pids []int
	for _, row := range rows {
		if pid, err := strconv.Atoi(row[0]); err == nil && !slices.Contains(pids, pid) {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// namespaces returns the percentages of the server's namespaces; 0 for one without.
func (c *control) namespaces(ctx context.Context) (map[string]int, error) {
	rows, err := c.rows(ctx, "namespace list --server="+serverName)
	found := make(map[string]int)
	for _, row := range rows {
		if len(row) < 5 {
			continue
		}
		percentage, err := strconv.ParseFloat(row[4], 64)
		if err != nil {
			percentage = 0
		}
		found[row[0]] = int(math.Round(percentage))
	}
	return found, err
}

// define gives a namespace its limits, and creates it if it is not there.
func (c *control) define(ctx context.Context, n Namespace, there bool) error {
	if !there {
		if _, err := c.run(ctx, "namespace create "+n.Name+" --server="+serverName); err != nil {
			return err
		}
	}
	limits := fmt.Sprintf(" --active-thread-percentage=%d", n.Percentage)
	if n.LimitBytes > 0 {
		limits += fmt.Sprintf(" --pinned-memory-limit=%dM", max(1, n.LimitBytes>>20))
	}
	_, err := c.run(ctx, "namespace set "+n.Name+" --server="+serverName+limits)
	return err
}
