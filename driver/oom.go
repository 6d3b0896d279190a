package driver

import (
	"context"
	"fmt"
	"time"

	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	apievents "github.com/containerd/containerd/api/events"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/typeurl/v2"

	"github.com/tranche-gpu/tranche/driver/client"
	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/internal/size"
)

// watchOOM listens for containerd's out-of-memory events as long as the driver runs, and emits task events.
func (d *Driver) watchOOM() {
	ctx := d.client.Context()
	filter := fmt.Sprintf("topic==%q,namespace==%q", "/tasks/oom", d.config.Namespace)
	for ctx.Err() == nil {
		envelopes, errs := d.client.Subscribe(ctx, filter)
		d.receiveOOM(envelopes, errs)
		// The stream ends when containerd does; the next subscription waits for it. The pause is for a containerd that
		// refuses at once.
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

func (d *Driver) receiveOOM(envelopes <-chan *events.Envelope, errs <-chan error) {
	for {
		select {
		case err := <-errs:
			d.logger.Debug("the stream of containerd's events ended", "error", err)
			return
		case envelope := <-envelopes:
			if envelope == nil {
				return
			}
			event, err := typeurl.UnmarshalAny(envelope.Event)
			if err != nil {
				d.logger.Warn("an event of containerd could not be read", "topic", envelope.Topic, "error", err)
				continue
			}
			if oom, ok := event.(*apievents.TaskOOM); ok {
				d.noteOOM(oom.ContainerID)
			}
		}
	}
}

func (d *Driver) noteOOM(container string) {
	h, ok := d.tasks.byContainer(container)
	if !ok {
		return
	}
	h.markOOM()
	limit, _ := spec.MemoryBytes(h.cfg)
	d.notify(h.cfg, map[string]string{"memory_limit_bytes": fmt.Sprint(limit)},
		"Out of memory: the kernel ended a process of the task at its limit of %d MiB", limit/size.MiB)
}

// oomKillsOf is the count of a task that has ended. One that ended well did not end for want of memory, and its end is
// known sooner if nobody is asked: the runtime reads some dozen files for an answer.
func oomKillsOf(ctx context.Context, task containerd.Task, status containerd.ExitStatus) uint64 {
	if status.ExitCode() == 0 {
		return 0
	}
	return countOOMKills(ctx, task)
}

// countOOMKills asks the kernel how many processes of the task it ended for want of memory. Unlike the event, the count
// cannot come after the exit, and is not lost while this plugin or containerd is down: it stands until the container is
// removed. Errors mean that nothing is known.
func countOOMKills(ctx context.Context, task containerd.Task) uint64 {
	ctx, cancel := context.WithTimeout(ctx, client.CallTimeout)
	defer cancel()
	metric, err := task.Metrics(ctx)
	if err != nil {
		return 0
	}
	return oomKills(metric.Data)
}

// oomKills reads the count from what the runtime says of a cgroup.
func oomKills(stats typeurl.Any) uint64 {
	data, err := typeurl.UnmarshalAny(stats)
	if err != nil {
		return 0
	}
	switch m := data.(type) {
	case *v1.Metrics:
		return m.GetMemoryOomControl().GetOomKill()
	case *v2.Metrics:
		return m.GetMemoryEvents().GetOomKill()
	}
	return 0
}
