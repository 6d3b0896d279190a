package mps

import (
	"encoding/json"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/internal/proc"
	"github.com/tranche-gpu/tranche/runtime/mpsdir"
)

// childName is the name under which the binary becomes a daemon.
const childName = "tranche-mps-control"

// hostShm is where the daemon and its servers share memory with their clients.
const hostShm = "/dev/" + mpsdir.Shm

// childReady is set by ChildMain. Without it a child would run the binary's own main instead.
var childReady bool

// childTask is what the child is to become.
type childTask struct {
	// Shm is the directory that becomes its /dev/shm.
	Shm string `json:"shm"`
	// Identity is the file in which it records its identity.
	Identity string   `json:"identity"`
	Args     []string `json:"args"`
	kind
}

// ChildMain becomes a daemon if the process was started to do so, and returns at once otherwise. A binary that uses this
// package calls it before anything else.
func ChildMain() {
	childReady = true
	if os.Args[0] != childName {
		return
	}
	fmt.Fprintln(os.Stderr, become(os.Args[1:]))
	os.Exit(1)
}

// become turns this process, which has a mount namespace and a session of its own, into the daemon.
func become(args []string) error {
	var task childTask
	if len(args) != 1 || json.Unmarshal([]byte(args[0]), &task) != nil {
		return fmt.Errorf("%s is started by Tranche itself", childName)
	}
	// Unmounts of the host take effect here as well, so that nothing is kept mounted; mounts made here stay here.
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount(task.Shm, hostShm, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s at %s: %w", task.Shm, hostShm, err)
	}
	self, err := proc.Self()
	if err != nil {
		return err
	}
	namespace, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return fmt.Errorf("read the mount namespace: %w", err)
	}
	// Written before the daemon starts: one without a record could never be ended.
	if err := writeJSON(task.Identity, identity{Process: self, Namespace: namespace, kind: task.kind}); err != nil {
		return err
	}
	// The driver's libraries in our binary may have opened files without O_CLOEXEC.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	return fmt.Errorf("start %s: %w", task.Args[0], unix.Exec(task.Args[0], task.Args, os.Environ()))
}
