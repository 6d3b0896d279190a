package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sync/errgroup"

	"github.com/tranche-gpu/tranche/e2e/images"
	"github.com/tranche-gpu/tranche/e2e/node"
)

const (
	idleImage = "tranche.local/idle:bench"
	// placePatience is how long one job may take to get its place and start, and all of a round to end; hintPatience how
	// long the hint may take, which is sent twice a minute at most.
	placePatience = 5 * time.Minute
	hintPatience  = 5 * time.Minute
	// hintAttribute is the packing hint's name.
	hintAttribute = "unique.slices_used"
)

// packingNode is a node that is filled with jobs, a Nomad agent of its own.
type packingNode struct {
	*node.Node
	jobspec string
	// used is how many slices jobs have of each GPU, by the names of the device groups.
	used map[string]int
}

func (b *bench) startPackingNode(ctx context.Context, dir string) (_ *packingNode, err error) {
	started, err := node.Start(ctx, node.Config{
		Dir: dir, BuildDir: b.build, NomadBinary: filepath.Join(b.build, "tools/nomad"),
		Topology:     filepath.Join(b.build, "../e2e/simgpu/topologies/h200x8.conf"),
		DeviceConfig: fmt.Sprintf("    slice_memory = %q\n    context_memory = %q\n    packing_hint = true\n", deviceSliceMemory, contextMemory),
	})
	if err != nil {
		return nil, err
	}
	n := &packingNode{Node: started, jobspec: filepath.Join(b.build, "../examples/packed.nomad.hcl"), used: map[string]int{}}
	image, err := images.Busybox()
	if err == nil {
		err = n.ImportImage(ctx, idleImage, image)
	}
	if err != nil {
		return nil, errors.Join(err, n.Stop(context.WithoutCancel(ctx)))
	}
	return n, nil
}

// round registers jobs until one has to wait, and ends them all. It returns how many slices the jobs had then.
func (n *packingNode) round(ctx context.Context, way string, sizes []int) (placed int, err error) {
	if err := n.waitForHint(ctx); err != nil { // all GPUs empty
		return 0, err
	}
	var jobs []string
	defer func() { err = errors.Join(err, n.end(ctx, jobs)) }()
	for i, size := range sizes {
		id := fmt.Sprintf("%s-%d", way, i)
		waits, err := n.place(ctx, way, id, size)
		if err != nil {
			return 0, fmt.Errorf("job %s of %d slices on %s: %w", id, size, n.Dir, err)
		}
		jobs = append(jobs, id)
		if waits {
			fmt.Printf("    %s on %s: %d jobs with %d slices, and one of %d waits\n", way, filepath.Base(n.Dir), i, placed, size)
			return placed, nil
		}
		placed += size
	}
	return 0, fmt.Errorf("%d jobs with %d slices have a place, and there is not so much", len(sizes), placed)
}

// place registers a job, and says whether it has to wait.
func (n *packingNode) place(ctx context.Context, way, id string, size int) (waits bool, err error) {
	job, err := n.job(way, id, size)
	if err != nil {
		return false, err
	}
	bounded, cancel := context.WithTimeout(ctx, placePatience)
	defer cancel()
	eval, err := n.Run(bounded, job)
	if err != nil {
		return false, err
	}
	if eval.BlockedEval != "" {
		return true, waitsForDevices(eval)
	}
	if err := n.note(bounded, id, size); err != nil {
		return false, err
	}
	if _, err := n.WaitStatus(bounded, id, "running"); err != nil {
		return false, err
	}
	if way != withHint {
		return false, nil
	}
	return false, n.waitForHint(ctx)
}

// job is examples/packed.nomad.hcl with a task that does nothing, and with other affinities or none where that is the way.
func (n *packingNode) job(way, id string, size int) (*api.Job, error) {
	job, err := n.Job(n.jobspec, "image="+idleImage, "slices="+strconv.Itoa(size), "gpus="+strconv.Itoa(deviceGPUs))
	if err != nil {
		return nil, err
	}
	job.ID, job.Name = &id, &id
	task := job.TaskGroups[0].Tasks[0]
	task.Config["command"], task.Config["args"] = "sleep", []string{"86400"}
	task.KillSignal = "SIGKILL" // or the end of a round would take as long as sleep ignores SIGTERM
	little := 10
	task.Resources.CPU, task.Resources.MemoryMB = &little, &little
	if len(task.Resources.Devices) != 1 || len(task.Resources.Devices[0].Affinities) != deviceGPUs {
		return nil, fmt.Errorf("%s has not one device block with %d affinities", n.jobspec, deviceGPUs)
	}
	switch way {
	case noAffinity:
		task.Resources.Devices[0].Affinities = nil
	case withHint:
		task.Resources.Devices[0].Affinities = hintAffinities()
	}
	return job, nil
}

// hintAffinities prefer the fullest GPU: one for the lower end of each step of the hint, and the fuller a GPU, the more of them
// match.
func hintAffinities() []*api.Affinity {
	var all []*api.Affinity
	for step := range hintSteps {
		above := (step*deviceSlices + hintSteps - 1) / hintSteps
		all = append(all, api.NewAffinity("${device.attr."+hintAttribute+"}", ">", strconv.Itoa(above), 50))
	}
	return all
}

// waitsForDevices checks that devices are what a job waits for, and nothing else.
func waitsForDevices(eval *api.Evaluation) error {
	for group, metric := range eval.FailedTGAllocs {
		if len(metric.DimensionExhausted) == 0 {
			return fmt.Errorf("group %s waits for something else than devices: %+v", group, metric)
		}
		for dimension := range metric.DimensionExhausted {
			if dimension != "devices: no devices match request" && dimension != "devices" {
				return fmt.Errorf("group %s waits for %q and not for devices", group, dimension)
			}
		}
	}
	return nil
}

// note asks Nomad which slices it has given to a job.
func (n *packingNode) note(ctx context.Context, id string, size int) error {
	alloc, err := n.WaitAlloc(ctx, id, func(*api.AllocationListStub) bool { return true })
	if err != nil {
		return err
	}
	info, _, err := n.Agent.API.Allocations().Info(alloc.ID, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return err
	}
	given := 0
	for _, task := range info.AllocatedResources.Tasks {
		for _, device := range task.Devices {
			n.used[device.Name] += len(device.DeviceIDs)
			given += len(device.DeviceIDs)
			if n.used[device.Name] > deviceSlices {
				return fmt.Errorf("the scheduler has given %d slices of %s, which has %d", n.used[device.Name], device.Name, deviceSlices)
			}
		}
	}
	if given != size {
		return fmt.Errorf("the scheduler has given %d slices", given)
	}
	return nil
}

// waitForHint waits until Nomad has been told how full the GPUs are.
func (n *packingNode) waitForHint(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, hintPatience)
	defer cancel()
	var hints map[string]int64
	_, err := n.WaitNode(bounded, func(node *api.Node) bool {
		hints = map[string]int64{}
		for _, group := range node.NodeResources.Devices {
			if told := group.Attributes[hintAttribute]; told != nil && told.IntVal != nil {
				hints[group.Name] = *told.IntVal
			}
		}
		for name, told := range hints {
			if told != int64(hint(n.used[name])) {
				return false
			}
		}
		return len(hints) == deviceGPUs
	})
	if err != nil {
		return fmt.Errorf("wait for the hint on %s: it is %v with %v slices in use: %w", n.Dir, hints, n.used, err)
	}
	return nil
}

// end ends jobs, and waits until their tasks are gone.
func (n *packingNode) end(ctx context.Context, jobs []string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), placePatience)
	defer cancel()
	var group errgroup.Group
	group.SetLimit(4)
	for _, id := range jobs {
		group.Go(func() error {
			if err := n.StopJob(ctx, id); err != nil {
				return fmt.Errorf("end job %s on %s: %w", id, n.Dir, err)
			}
			return nil
		})
	}
	clear(n.used)
	return group.Wait()
}
