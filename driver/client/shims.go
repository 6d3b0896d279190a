package client

import (
	"path/filepath"
	"strings"

	"github.com/prometheus/procfs"

	"github.com/tranche-gpu/tranche/internal/proc"
)

// Shim is a process of a container's shim: the shim itself, or a program that starts it or cleans up after it.
type Shim struct {
	Process     proc.ID
	ContainerID string
}

// Shims returns the shims of this containerd and namespace, also those of which containerd does not know.
func (c *Client) Shims() ([]Shim, error) {
	processes, err := procfs.AllProcs()
	var shims []Shim
	for _, running := range processes {
		if s, ok := c.shimOf(running); ok {
			shims = append(shims, s)
		}
	}
	return shims, err
}

// shimOf returns the shim that a process is, if it is one of this containerd and namespace.
func (c *Client) shimOf(running procfs.Proc) (Shim, bool) {
	args, err := running.CmdLine()
	if err != nil || len(args) == 0 || !strings.HasPrefix(filepath.Base(args[0]), "containerd-shim-") {
		return Shim{}, false
	}
	flags := map[string]string{}
	for i := 1; i+1 < len(args); i++ {
		flags[args[i]] = args[i+1]
	}
	if flags["-namespace"] != c.Namespace || flags["-address"] != c.Address {
		return Shim{}, false
	}
	process, err := proc.Find(running.PID)
	return Shim{Process: process, ContainerID: flags["-id"]}, err == nil
}
