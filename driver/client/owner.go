package client

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/tranche-gpu/tranche/internal/proc"
)

// thisOwner returns the value of the label naming.Owner for this plugin process: boot, PID namespace, process ID and start time.
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

// OwnerDied reports whether the plugin process that a value of naming.Owner names has certainly ended. Processes in another
// PID namespace cannot be seen from here, and a value of another form may be of another version: both may live.
func OwnerDied(owner string) bool {
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
