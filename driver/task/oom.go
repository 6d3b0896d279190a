package task

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

// WatchOOM subscribes to containerd's out-of-memory events until the client is closed, and emits task events.
func (p *Plugin) WatchOOM(tasks *Store) {
	ctx := p.Client.Context()
	filter := fmt.Sprintf("topic==%q,namespace==%q", "/tasks/oom", p.Client.Namespace)
	for ctx.Err() == nil {
		envelopes, errs := p.Client.Subscribe(ctx, filter)
		p.receiveOOM(tasks, envelopes, errs)
		// The stream ends when containerd does; the next subscription waits for it. The pause is for a containerd that
		// refuses at once.
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

func (p *Plugin) receiveOOM(tasks *Store, envelopes <-chan *events.Envelope, errs <-chan error) {
	for {
		select {
		case err := <-errs:
			p.Logger.Debug("the stream of containerd's events ended", "error", err)
			return
		case envelope := <-envelopes:
			if envelope == nil {
				return
			}
			event, err := typeurl.UnmarshalAny(envelope.Event)
			if err != nil {
				p.Logger.Warn("an event of containerd could not be read", "topic", envelope.Topic, "error", err)
				continue
			}
			if oom, ok := event.(*apievents.TaskOOM); ok {
				if h, known := tasks.ByContainer(oom.ContainerID); known {
					h.noteOOM()
				}
			}
		}
	}
}

func (h *Handle) noteOOM() {
	h.markOOM()
	limit, _ := spec.MemoryBytes(h.Config)
	h.plugin.Notify(h.Config, map[string]string{"memory_limit_bytes": fmt.Sprint(limit)},
		"Out of memory: the kernel ended a process of the task%s", h.atMemoryLimit())
}

// atMemoryLimit names the limit in messages. A task without one ends where the node's memory does.
func (h *Handle) atMemoryLimit() string {
	if limit, _ := spec.MemoryBytes(h.Config); limit > 0 {
		return fmt.Sprintf(" at its limit of %d MiB", limit/size.MiB)
	}
	return ", which has no limit; the node has no memory left"
}

// oomKillsOf returns the count of a task that has ended. One that exited with 0 did not run out of memory, and its end is
// known sooner without the query: the runtime reads some dozen files for it.
func oomKillsOf(ctx context.Context, task containerd.Task, status containerd.ExitStatus) uint64 {
	if status.ExitCode() == 0 {
		return 0
	}
	return countOOMKills(ctx, task)
}

// countOOMKills returns how many processes of the task the kernel ended because they were out of memory; 0 if that is not
// known. Unlike the event, the count cannot come after the exit, and is not lost while this plugin or containerd is down:
// it stands until the container is removed.
func countOOMKills(ctx context.Context, task containerd.Task) uint64 {
	ctx, cancel := context.WithTimeout(ctx, client.CallTimeout)
	defer cancel()
	metric, err := task.Metrics(ctx)
	if err != nil {
		return 0
	}
	return oomKills(metric.Data)
}

// oomKills returns the count in the runtime's statistics of a cgroup.
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
