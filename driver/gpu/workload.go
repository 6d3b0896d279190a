package gpu

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/tranche-gpu/tranche/claim"
)

// Begin records with the claims of a task which task they are for, before anything of its start can fail, and has a claim whose
// slices a container outside Nomad got meanwhile take them back. Errors that pass are recoverable.
func (c *Claims) Begin(ctx context.Context, cfg *drivers.TaskConfig) error {
	if !claim.HasTokens(cfg.DeviceEnv) {
		return nil
	}
	ledger, err := c.open()
	if err != nil {
		return fmt.Errorf("open the ledger of claims: %w", err)
	}
	if _, err := ledger.Reclaim(ctx, cfg.DeviceEnv, workloadOf(cfg)); err != nil {
		return retriable(fmt.Errorf("look up the task's claims: %w", err))
	}
	return nil
}

// workloadOf returns the names of a task as Nomad says them.
func workloadOf(cfg *drivers.TaskConfig) claim.Workload {
	w := claim.Workload{
		Namespace: cfg.Namespace, Job: cfg.JobID, ParentJob: cfg.ParentJobID, Group: cfg.TaskGroupName, Task: cfg.Name,
		Allocation: cfg.AllocID, Verified: true,
	}
	return w.In(cfg.AllocDir)
}

// giveUpTimeout bounds how long a failed start waits for the ledger.
const giveUpTimeout = 10 * time.Second

// GiveUp makes the claims of a task dormant whose start has failed, so that nobody waits for its slices. A restart in place
// gets them back if they are free.
func (c *Claims) GiveUp(ctx context.Context, cfg *drivers.TaskConfig) {
	if !claim.HasTokens(cfg.DeviceEnv) {
		return
	}
	ledger, err := c.open()
	if err != nil {
		return // Begin returned the error.
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveUpTimeout) // the start may have failed by its context
	defer cancel()
	if err := ledger.GiveUp(bounded, cfg.DeviceEnv); err != nil {
		c.logger.Warn("the claims of a task that did not start stay reserved for ten minutes", "task_id", cfg.ID, "error", err)
	}
}
