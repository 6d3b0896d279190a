package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/e2e/images"
	"github.com/tranche-gpu/tranche/e2e/node"
)

// image is the reference under which the demo's containerd holds the image of examples/gpu-probe.
const image = "tranche.local/gpu-probe:demo"

// demonstration is what the steps share.
type demonstration struct {
	options
	node  *node.Node
	judge judge
	table table
	start time.Time
}

// show starts a node, shows the main job on it, prints the table and stops the node, or with -keep waits to be stopped.
func show(ctx context.Context, o options) error {
	if o.keep {
		unix.CloseOnExec(storyFD)
		story := os.NewFile(storyFD, "story")
		os.Stdout, os.Stderr = story, story
	}
	d := &demonstration{options: o, start: time.Now()}
	d.say("starting containerd and a Nomad agent of the demo's own in %s", o.place("node"))
	startCtx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	if err := d.startNode(startCtx); err != nil {
		return err
	}
	err := d.tellAndJudge(ctx)
	if err == nil && o.keep {
		err = d.stay(ctx)
	}
	if stopErr := d.node.Stop(context.WithoutCancel(ctx)); err != nil || stopErr != nil {
		return errors.Join(err, stopErr)
	}
	return os.RemoveAll(o.place("node"))
}

// tellAndJudge runs the examples, prints the table, and returns an error if something did not hold.
func (d *demonstration) tellAndJudge(ctx context.Context) error {
	if err := d.tell(ctx); err != nil {
		return err
	}
	fmt.Println()
	d.table.print(os.Stdout)
	fmt.Println()
	if d.judge.simulated() {
		fmt.Println("The GPUs, their memory and the kernels are SIMULATED; Nomad, containerd, runc and the limits are real.")
	}
	if !d.table.held() {
		return errors.New("not everything held")
	}
	fmt.Printf("Everything held, in %.0f s.\n", time.Since(d.start).Seconds())
	return nil
}

// say prints one step of the story.
func (d *demonstration) say(format string, args ...any) {
	fmt.Printf("==> [%4.1fs] %s\n", time.Since(d.start).Seconds(), fmt.Sprintf(format, args...))
}

func (d *demonstration) startNode(ctx context.Context) error {
	config := node.Config{Dir: d.place("node"), BuildDir: d.build, NomadBinary: d.nomad}
	real, err := realGPUs()
	if err != nil {
		config.Topology = filepath.Join(filepath.Dir(d.build), "e2e/simgpu/topologies/h200x2.conf")
		config.DeviceConfig, config.DriverConfig = sharesDeviceConfig, sharesDriverConfig
		d.say("no real GPU here (%v): two SIMULATED NVIDIA H200 of 143771 MiB each", err)
	} else {
		d.say("real GPUs: %s", real)
	}
	if d.node, err = node.Start(ctx, config); err != nil {
		return err
	}
	d.judge = newJudge(d.node)
	probe, err := images.Program(filepath.Join(d.build, "e2e/gpu-probe"))
	if err != nil {
		return err
	}
	return d.node.ImportImage(ctx, image, probe)
}

// stay tells how to look around, says that all held, and waits to be stopped.
func (d *demonstration) stay(ctx context.Context) error {
	if err := d.again(ctx); err != nil {
		return err
	}
	config := d.place("node/tranche.toml")
	if err := d.node.WriteConfig(config); err != nil {
		return err
	}
	environment := []string{"TRANCHE_CONFIG=" + config}
	if d.node.Sim != nil {
		environment = append(environment, d.node.Sim.Env()...)
	}
	if err := writeCommands(d.options, d.node.Agent.Address, environment); err != nil {
		return err
	}
	pages, err := d.servePages(ctx)
	if err != nil {
		return err
	}
	fmt.Printf(`
The node stays (KEEP=1), with first and second running. Look around:

  export PATH=%[1]s:$PATH      # nomad and tranche, inside the demo's sandbox
  nomad node status -self -verbose
  nomad job run examples/no-gpu.nomad.hcl
  nomad job status
  nomad alloc logs -job first
  tranche status
  tranche doctor
  tranche top

The agent's pages are at %[2]s, its metrics at %[2]smetrics.

Stop it with:

  make demo-stop
`, d.place("bin"), pages)
	fmt.Println(heldLine)
	<-ctx.Done()
	return nil
}
