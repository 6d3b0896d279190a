// Package reconcile removes orphans: what an earlier plugin process left that died during a start or a removal, tasks that
// Nomad has lost, and what containerd and runtimes left outside containerd's database. It finds them by labels, or by names
// where there are none, and must not remove what this driver did not make, nor what may belong to another agent on the same
// containerd.
package reconcile

import (
	"context"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/driver/client"
	"github.com/tranche-gpu/tranche/driver/removal"
	"github.com/tranche-gpu/tranche/driver/task"
)

// Config is what a Reconciler uses of the driver.
type Config struct {
	Client  *client.Client
	Logger  hclog.Logger
	Agents  *Agents
	Tasks   *task.Store
	Removal *removal.Remover
	// Destroy destroys a task, by force if it runs.
	Destroy func(taskID string) error
	// HoldStart keeps a task of an allocation from being started until release is called. A start that waits for that ends
	// the context that it returns. ok is false if the task is being started.
	HoldStart func(ctx context.Context, allocID, task string) (held context.Context, release func(), ok bool)
	// ExecDir is the directory for the named pipes of executed commands.
	ExecDir string
	// Began is when this plugin process started.
	Began time.Time

	// Period is how often orphans are removed, Grace their least age. DryRun only logs what would be removed.
	Period, Grace time.Duration
	DryRun        bool
}

// Reconciler removes orphans. Make one with New.
type Reconciler struct {
	Config
	empty emptyCgroups
}

// New returns a reconciler, which does nothing before Run or Once.
func New(config Config) *Reconciler { return &Reconciler{Config: config} }

// Run removes orphans until the client is closed. It begins after Grace, in which Nomad recovers its tasks.
func (r *Reconciler) Run() {
	for wait := r.Grace; r.Client.Pause(wait); wait = r.Period {
		if _, err := r.Once(r.Client.Context(), r.Grace); err != nil && r.Client.Context().Err() == nil {
			r.Logger.Warn("cannot look for all orphans; trying again", "in", r.Period, "error", err)
		}
	}
}

// Once removes the orphans that are older than grace, and returns what they were.
func (r *Reconciler) Once(ctx context.Context, grace time.Duration) ([]string, error) {
	if err := r.Client.CheckServing(); err != nil {
		return nil, err
	}
	r.destroyLostTasks(grace)
	removed := r.removeStalePipes()
	found, err := r.orphans(ctx)
	for _, o := range found {
		if why := r.whyOrphan(o, time.Now().Add(-grace)); why != "" && r.removeOrphan(ctx, o, why) {
			removed = append(removed, o.kind+" "+o.id)
		}
	}
	removed = append(removed, r.removeStaleCgroups(grace)...)
	removed = append(removed, r.endEmptyShims(ctx, time.Now().Add(-grace))...)
	r.Agents.forgetAllocs(grace)
	return removed, err
}
