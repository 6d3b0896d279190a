package node

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// GovernorPID is the process ID of the node's governor, which the device plugin starts; 0 if none runs.
func (n *Node) GovernorPID() int {
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is a good one
	for _, file := range commands {
		text, _ := os.ReadFile(file) // it may have ended
		args := bytes.Split(text, []byte{0})
		if len(args) > 1 && string(args[1]) == "governor" && bytes.Contains(text, []byte(n.RunDir()+"\x00")) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			return pid
		}
	}
	return 0
}

// stopGovernor ends the governor, which goes on when its plugin ends, and waits until it writes nothing any more.
func (n *Node) stopGovernor(ctx context.Context) error {
	pid := n.GovernorPID()
	if pid == 0 {
		return nil
	}
	if err := unix.Kill(pid, unix.SIGTERM); err != nil && err != unix.ESRCH {
		return err
	}
	for n.GovernorPID() == pid {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the governor's end: %w", ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}
