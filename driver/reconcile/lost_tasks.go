package reconcile

import (
	"time"
)

// listenSlack is how long before it listens for fingerprints a starting agent may query its tasks.
const listenSlack = time.Second

// destroyLostTasks destroys tasks that Nomad does not know: an agent that dies before it has stored the handle of a task
// never queries the task again. A task is lost if an agent has listened for grace without a query; tasks continue to run while
// no agent listens.
func (r *Reconciler) destroyLostTasks(grace time.Duration) {
	since, ok := r.Agents.present()
	if !ok || time.Since(since) < grace {
		return
	}
	for _, h := range r.Tasks.All() {
		if !h.NotQueriedSince(since.Add(-listenSlack)) {
			continue
		}
		logger := r.Logger.With("task_id", h.Config.ID, "container", h.State.ContainerID, "agent_since", since)
		if r.DryRun {
			logger.Info("the agent does not know this task; dry_run keeps it")
			continue
		}
		logger.Info("destroying a task that the agent does not know")
		if err := r.Destroy(h.Config.ID); err != nil {
			logger.Warn("a task that the agent does not know could not be destroyed", "error", err)
		}
	}
}
