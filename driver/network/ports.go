package network

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/internal/thread"
)

// OpenLowPorts lets every process in the group's network listen on every port, for a container with a user namespace of its
// own: the network is not that namespace's, so that its root may not listen on ports below 1024 there, and the runtime may not
// change that.
func (n *Network) OpenLowPorts() error {
	if n.Mode != Bridge {
		return nil
	}
	err := thread.Run(func() error {
		group, err := os.Open(n.path)
		if err != nil {
			return err
		}
		defer group.Close()
		if err := unix.Setns(int(group.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		// The kernel shows each thread the parameters of its own network here. Older ones do not have this one.
		err = os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("let the task listen on ports below 1024 in the group's network: %w", err)
	}
	return nil
}
