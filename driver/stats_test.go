package driver

import (
	"context"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestStats(t *testing.T) {
	d := newTestDriver(t)
	d.driver.plugin.TicksPerCore = 2000
	cfg := d.task("while :; do :; done")
	d.start(cfg)
	ctx, cancel := context.WithTimeout(d.ctx, time.Minute)
	defer cancel()
	usages, err := d.TaskStats(ctx, cfg.ID, 200*time.Millisecond)
	must.NoError(t, err)
	for usage := range usages {
		must.Positive(t, usage.ResourceUsage.MemoryStats.Usage)
		must.Positive(t, usage.Timestamp)
		cpu := usage.ResourceUsage.CpuStats
		must.InDelta(t, cpu.Percent/100*2000, cpu.TotalTicks, 0.01) // by which Nomad accounts it
		if cpu.Percent > 1 {                                        // others may have the processors
			break
		}
	}
	must.NoError(t, ctx.Err(), must.Sprint("a busy loop was never seen to use the CPU"))
	must.NoError(t, d.DestroyTask(cfg.ID, true))
	for range usages { // The stream ends with the task.
	}
	must.NoError(t, ctx.Err())
}
