package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/api"
)

const (
	mib        = 1 << 20
	sliceBytes = 1 << 30
	// granularity is the unit in which a driver takes physical memory for large allocations.
	granularity = 2 * mib
	// outOfMemory is CUDA_ERROR_OUT_OF_MEMORY (cuda.h).
	outOfMemory = 2
)

// line is what gpu-probe writes, one JSON object a line.
type line struct {
	Event            string `json:"event"`
	Name             string `json:"name"`
	LibCUDA          bool   `json:"libcuda"`
	GPUs             int    `json:"gpus"`
	CUDeviceTotalMem uint64 `json:"cuDeviceTotalMem"`
	CUMemGetInfo     struct {
		Total uint64 `json:"total"`
		Free  uint64 `json:"free"`
	} `json:"cuMemGetInfo"`
	NVML struct {
		Total uint64 `json:"total"`
	} `json:"nvml"`
	Taken    uint64 `json:"taken"`
	Free     uint64 `json:"free"`
	Result   int    `json:"result"`
	Refusals uint64 `json:"refusals"`
	Launches uint64 `json:"launches"`
}

// running is a job that runs on a fraction, and what its program has said.
type running struct {
	id     string
	alloc  *api.AllocationListStub
	device string
	said   map[string]line
}

// tell runs the examples and notes what is seen. It returns an error where the story can't go on.
func (d *demonstration) tell(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	if err := d.withoutGPU(ctx); err != nil {
		return err
	}
	first, err := d.runFull(ctx, "first")
	if err != nil {
		return err
	}
	second, err := d.runFull(ctx, "second")
	if err != nil {
		return err
	}
	if err := d.sideBySide(ctx, first, second); err != nil {
		return err
	}
	if err := d.greedyIsHeld(ctx); err != nil {
		return err
	}
	if err := d.waitingStarts(ctx, second); err != nil {
		return err
	}
	if err := d.stillComputing(ctx, first); err != nil {
		return err
	}
	if err := d.allIsFreed(ctx); err != nil {
		return err
	}
	return d.sharesHold(ctx)
}

// withoutGPU runs the image without a device block.
func (d *demonstration) withoutGPU(ctx context.Context) error {
	d.say("running examples/no-gpu.nomad.hcl: the task driver, no device block")
	if _, err := d.register(ctx, "no-gpu"); err != nil {
		return err
	}
	alloc, err := d.node.WaitStatus(ctx, "no-gpu", "complete")
	if err != nil {
		return err
	}
	job := &running{id: "no-gpu", alloc: alloc, said: map[string]line{}}
	if err := d.listen(ctx, job, "look"); err != nil {
		return err
	}
	look := job.said["look"]
	d.table.add(look.GPUs == 0 && !look.LibCUDA, "a container without a device block sees no GPU",
		"GPUs: %d, libcuda found: %t", look.GPUs, look.LibCUDA)
	return nil
}

// register runs one of the examples.
func (d *demonstration) register(ctx context.Context, name string, variables ...string) (*api.Evaluation, error) {
	path := filepath.Join(filepath.Dir(d.build), "examples", name+".nomad.hcl")
	job, err := d.node.Job(path, append(variables, "image="+image)...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return d.node.Run(ctx, job)
}

// runFull runs an example that fills its GPU, and notes what its program saw.
func (d *demonstration) runFull(ctx context.Context, name string) (*running, error) {
	d.say("running examples/%s.nomad.hcl: 8 slices of 1 GiB", name)
	if _, err := d.register(ctx, name); err != nil {
		return nil, err
	}
	job, err := d.started(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := d.listen(ctx, job, "gpu", "full", "computing"); err != nil {
		return nil, err
	}
	return job, d.checkFull(ctx, job, 8*sliceBytes)
}

// started waits until a job runs and finds out which GPU it is on.
func (d *demonstration) started(ctx context.Context, name string) (*running, error) {
	alloc, err := d.node.WaitStatus(ctx, name, "running")
	if err != nil {
		return nil, err
	}
	info, _, err := d.node.Agent.API.Allocations().Info(alloc.ID, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return nil, err
	}
	job := &running{id: name, alloc: alloc, said: map[string]line{}}
	for _, device := range info.AllocatedResources.Tasks["probe"].Devices {
		job.device = device.Name
	}
	return job, nil
}

// listen reads what a job's program says until it has said every one of the events.
func (d *demonstration) listen(ctx context.Context, job *running, events ...string) error {
	var failure error
	err := d.node.Lines(ctx, job.alloc.ID, "probe", func(text string) bool {
		var said line
		if err := json.Unmarshal([]byte(text), &said); err != nil {
			failure = fmt.Errorf("job %s says %q: %w", job.id, text, err)
			return true
		}
		job.said[said.Event] = said
		if said.Event == "error" {
			failure = fmt.Errorf("job %s: %s", job.id, text)
			return true
		}
		for _, event := range events {
			if _, ok := job.said[event]; !ok {
				return false
			}
		}
		return true
	})
	return errors.Join(err, failure)
}

// checkFull notes what a program that filled its GPU saw, and what the judge says it holds.
func (d *demonstration) checkFull(ctx context.Context, job *running, limit uint64) error {
	gpu, full := job.said["gpu"], job.said["full"]
	d.table.add(gpu.CUDeviceTotalMem == limit && gpu.CUMemGetInfo.Total == limit && gpu.NVML.Total == limit,
		fmt.Sprintf("%s sees a GPU of %d MiB", job.id, limit/mib), "cuDeviceTotalMem %d, cuMemGetInfo %d, NVML %d MiB",
		gpu.CUDeviceTotalMem/mib, gpu.CUMemGetInfo.Total/mib, gpu.NVML.Total/mib)
	held, err := d.judge.holds(ctx, job.id)
	if err != nil {
		return err
	}
	// Only the simulator says what the contexts cost.
	exact := !d.judge.simulated() || full.Taken+held.contexts == limit
	d.table.add(full.Result == outOfMemory && full.Free < granularity && exact,
		job.id+" allocates up to that, then is refused", "%d MiB taken + %d MiB context, then %s",
		full.Taken/mib, held.contexts/mib, full.Name)
	d.table.add(held.now > limit-64*mib && held.peak <= limit,
		fmt.Sprintf("%s holds %d MiB of the GPU, never more", job.id, limit/mib), "%s: %d MiB now, %d MiB at most",
		d.judge.name(), held.now/mib, held.peak/mib)
	return nil
}

// sideBySide notes that two jobs are on one GPU and that the first has gone on computing while the second was refused.
func (d *demonstration) sideBySide(ctx context.Context, first, second *running) error {
	d.table.add(first.device == second.device && first.device != "", "both run at the same time on one GPU",
		"%s and %s", first.device, second.device)
	before := first.said["computing"].Launches
	return d.computing(ctx, first, before, "the first keeps computing while the second is refused")
}

// computing notes that a job has launched more kernels than it had.
func (d *demonstration) computing(ctx context.Context, job *running, before uint64, promise string) error {
	after := before
	err := d.node.Lines(ctx, job.alloc.ID, "probe", func(text string) bool {
		var said line
		if json.Unmarshal([]byte(text), &said) == nil && said.Event == "computing" {
			after = said.Launches
		}
		return after > before
	})
	if err != nil {
		return err
	}
	job.said["computing"] = line{Event: "computing", Launches: after}
	d.table.add(after > before, promise, "%d launches, then %d", before, after)
	return nil
}

// greedyIsHeld runs a program that never stops allocating.
func (d *demonstration) greedyIsHeld(ctx context.Context) error {
	const limit = 4 * sliceBytes
	d.say("running examples/greedy.nomad.hcl: 4 slices, and no end to what it asks for")
	if _, err := d.register(ctx, "greedy"); err != nil {
		return err
	}
	job, err := d.started(ctx, "greedy")
	if err != nil {
		return err
	}
	const enough = 100
	err = d.node.Lines(ctx, job.alloc.ID, "probe", func(text string) bool {
		var said line
		if json.Unmarshal([]byte(text), &said) == nil && said.Event == "greedy" {
			job.said["greedy"] = said
		}
		return job.said["greedy"].Refusals >= enough
	})
	if err != nil {
		return err
	}
	held, err := d.judge.holds(ctx, "greedy")
	if err != nil {
		return err
	}
	d.table.add(held.peak <= limit && held.now > limit-granularity,
		fmt.Sprintf("greedy is held at its %d MiB", limit/mib), "%s: %d MiB at most, %d requests refused",
		d.judge.name(), held.peak/mib, job.said["greedy"].Refusals)
	return nil
}

// waitingStarts runs a job that does not fit, sees it blocked, stops another and sees it start.
func (d *demonstration) waitingStarts(ctx context.Context, other *running) error {
	slices, err := d.slicesOf(ctx, other.device)
	if err != nil {
		return err
	}
	// As many as are free on that GPU once other has stopped: first keeps 8, greedy 4.
	wanted := slices - 12
	d.say("running examples/waiting.nomad.hcl: %d of the GPU's %d slices, which are not free", wanted, slices)
	eval, err := d.register(ctx, "waiting", "slices="+strconv.Itoa(wanted))
	if err != nil {
		return err
	}
	d.table.add(eval.BlockedEval != "", "a job whose slices don't fit waits as blocked",
		"evaluation %.8s blocked: %t", eval.ID, eval.BlockedEval != "")
	d.say("stopping %s", other.id)
	if err := d.node.StopJob(ctx, other.id); err != nil {
		return err
	}
	alloc, err := d.node.WaitStatus(ctx, "waiting", "running")
	if err != nil {
		return err
	}
	d.table.add(true, "it starts by itself when another job stops", "%s stopped, waiting is %s", other.id, alloc.ClientStatus)
	return nil
}

// slicesOf is how many slices the device group of that name has.
func (d *demonstration) slicesOf(ctx context.Context, group string) (int, error) {
	info, err := d.node.WaitNode(ctx, func(*api.Node) bool { return true })
	if err != nil {
		return 0, err
	}
	for _, device := range info.NodeResources.Devices {
		if device.Name == group {
			return len(device.Instances), nil
		}
	}
	return 0, fmt.Errorf("the node has no device group %q", group)
}

// stillComputing notes that nothing of all that has stopped the first job.
func (d *demonstration) stillComputing(ctx context.Context, first *running) error {
	return d.computing(ctx, first, first.said["computing"].Launches, "the first job never noticed")
}

// allIsFreed stops all jobs and notes that no memory is held any more.
func (d *demonstration) allIsFreed(ctx context.Context) error {
	d.say("stopping the jobs")
	for _, name := range []string{"waiting", "greedy", "first"} {
		if err := d.node.StopJob(ctx, name); err != nil {
			return err
		}
	}
	used, err := d.judge.used(ctx)
	if err != nil {
		return err
	}
	d.table.add(used == 0 || !d.judge.simulated(), "when the jobs have stopped, their memory is free", "%s: %d MiB in use",
		d.judge.name(), used/mib)
	return nil
}

// again starts the two jobs once more, for who looks around.
func (d *demonstration) again(ctx context.Context) error {
	for _, name := range []string{"first", "second"} {
		if _, err := d.register(ctx, name); err != nil {
			return err
		}
		if _, err := d.node.WaitStatus(ctx, name, "running"); err != nil {
			return err
		}
	}
	return nil
}
