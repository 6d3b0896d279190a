package driver

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/tranche-gpu/tranche/internal/proc"
)

// labelOwner is on the leases of starts and pulls, and names the plugin process that took them: agents that share a
// containerd can tell by it which of each other's leases nobody needs any more.
const labelOwner = labelPrefix + "owner"

// thisOwner is the value of labelOwner for this process: boot, PID namespace, process ID and start time.
func thisOwner() (string, error) {
	self, err := proc.Self()
	if err != nil {
		return "", err
	}
	namespace, err := pidNamespace()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s/%s/%d/%d", self.BootID, namespace, self.PID, self.StartTime), nil
}

// ownerDied reports whether the process that a labelOwner names has certainly ended. Processes in another PID namespace
// cannot be seen from here, and what is not understood may be of another version: both may live.
func ownerDied(owner string) bool {
	parts := strings.Split(owner, "/")
	if len(parts) != 4 {
		return false
	}
	if boot, err := proc.BootID(); err != nil || boot != parts[0] {
		return err == nil
	}
	namespace, err := pidNamespace()
	if err != nil || namespace != parts[1] {
		return false
	}
	pid, errPID := strconv.Atoi(parts[2])
	start, errStart := strconv.ParseUint(parts[3], 10, 64)
	return errPID == nil && errStart == nil &&
		!proc.ID{PID: pid, StartTime: start, BootID: parts[0]}.MayLive()
}

func pidNamespace() (string, error) { return os.Readlink("/proc/self/ns/pid") }
