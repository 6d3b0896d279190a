package task

import (
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/tranche-gpu/tranche/driver/client"
	"github.com/tranche-gpu/tranche/driver/failpoint"
	"github.com/tranche-gpu/tranche/driver/ociruntime"
)

// KillWait is how long a process may take to end after SIGKILL.
const KillWait = 15 * time.Second

// Plugin is what tasks use of the plugin process that runs them.
type Plugin struct {
	Client *client.Client
	Logger hclog.Logger
	// Notify emits a task event.
	Notify func(cfg *drivers.TaskConfig, annotations map[string]string, format string, args ...any)
	// Reach is called at each failpoint.
	Reach func(failpoint.Point)
	// ExecDir is the directory for the named pipes of executed commands.
	ExecDir string
	// TicksPerCore is the capacity of one core in MHz; 0 where unknown.
	TicksPerCore float64
	// KillWait is the constant of that name, unless a test changes it.
	KillWait time.Duration
	// Runtimes are the versions of the node's OCI runtimes.
	Runtimes *ociruntime.Versions
}
