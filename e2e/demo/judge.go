package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/e2e/node"
)

// holding is what a container holds of the physical memory of its GPU, in bytes.
type holding struct{ now, peak, contexts uint64 }

// judge says what is physically held. It is never Tranche's own accounting.
type judge interface {
	// name is what the table calls it.
	name() string
	simulated() bool
	// holds is what the container of a job's newest allocation holds.
	holds(ctx context.Context, job string) (holding, error)
	// used is what all processes of the node hold.
	used(ctx context.Context) (uint64, error)
}

func newJudge(n *node.Node) judge {
	if n.Sim != nil {
		return record{n}
	}
	return driver{n, nvml.New(n.DriverRoot())}
}

// record is the simulator's own record of physical memory.
type record struct{ node *node.Node }

func (record) name() string    { return "simulator's record" }
func (record) simulated() bool { return true }

func (r record) holds(ctx context.Context, job string) (holding, error) {
	init, err := initOf(ctx, r.node, job)
	if err != nil {
		return holding{}, err
	}
	group, err := node.GroupOf(init)
	if err != nil {
		return holding{}, err
	}
	all, err := r.node.Sim.Record(ctx)
	if err != nil {
		return holding{}, err
	}
	var h holding
	for _, g := range all.Group(group) {
		h.now, h.peak = h.now+g.Bytes, h.peak+g.PeakBytes
	}
	for _, p := range all.Processes {
		for _, gpu := range p.GPUs {
			if p.Group == group && p.Alive {
				h.contexts += gpu.ContextBytes
			}
		}
	}
	return h, nil
}

func (r record) used(ctx context.Context) (uint64, error) {
	all, err := r.node.Sim.Record(ctx)
	if err != nil {
		return 0, err
	}
	var used uint64
	for _, g := range all.GPUs {
		used += g.UsedBytes
	}
	return used, nil
}

// driver is what the driver of real GPUs says through NVML. It samples: a peak between two questions is not seen.
type driver struct {
	node    *node.Node
	library nvml.Interface
}

func (driver) name() string    { return "NVML" }
func (driver) simulated() bool { return false }

func (d driver) holds(ctx context.Context, job string) (holding, error) {
	init, err := initOf(ctx, d.node, job)
	if err != nil {
		return holding{}, err
	}
	namespace, err := node.PIDNamespace(init)
	if err != nil {
		return holding{}, err
	}
	gpus, err := d.library.Read(ctx)
	if err != nil {
		return holding{}, err
	}
	var h holding
	for _, gpu := range gpus.GPUs {
		processes, err := d.library.Processes(ctx, gpu.UUID)
		if err != nil {
			return holding{}, err
		}
		for _, p := range processes {
			if other, err := node.PIDNamespace(p.PID); err == nil && other == namespace {
				h.now += p.UsedBytes
			}
		}
	}
	h.peak = h.now
	return h, nil
}

func (d driver) used(ctx context.Context) (uint64, error) {
	gpus, err := d.library.Read(ctx)
	if err != nil {
		return 0, err
	}
	var used uint64
	for _, gpu := range gpus.GPUs {
		used += gpu.UsedBytes
	}
	return used, nil
}

// initOf is the first process of the container of a job's running allocation.
func initOf(ctx context.Context, n *node.Node, job string) (int, error) {
	allocs, _, err := n.Agent.API.Jobs().Allocations(job, false, nil)
	if err != nil {
		return 0, err
	}
	for _, a := range allocs {
		if a.ClientStatus == "running" {
			return n.InitPID(ctx, a.ID, "probe")
		}
	}
	return 0, fmt.Errorf("job %s has no running allocation", job)
}

// realGPUs says which GPUs the machine has, or why there are none to show the demo on.
func realGPUs() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	library := nvml.New("/")
	defer library.Close(ctx)
	found, err := library.Read(ctx)
	if none := (&nvml.NoDriverError{}); errors.As(err, &none) {
		return "", errors.New("no NVIDIA driver")
	}
	if err != nil {
		return "", err
	}
	if len(found.GPUs) == 0 {
		return "", errors.New("the driver has none")
	}
	var names []string
	for _, gpu := range found.GPUs {
		names = append(names, fmt.Sprintf("%s (%d MiB)", gpu.Name, gpu.MemoryBytes/mib))
	}
	return strings.Join(names, ", "), nil
}
