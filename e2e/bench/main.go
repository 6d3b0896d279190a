// Command bench measures what Tranche costs, side by side with doing without it, in one run: calls of the CUDA driver
// through the shadow and straight to the simulated driver, containers through tranche-runtime and through runc, and
// tasks of Nomad through our task driver and through Nomad's docker driver, where Docker is installed; what the device
// plugin takes; and how full GPUs get before a job has to wait.
// It prints a table and writes build/bench.tsv.
//
//	bench -build DIR [-out FILE] [-only PART,…] [-rounds N] [-containers N] [-tasks N] [-at-once N] [-bursts N]
//	  [-runtimes NAME,…] [-fingerprints N] [-reserves N] [-ticks N]
//	  [-packing-rounds N] [-packing-modelled N] [-packing-seed N]
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"tranche.dev/tranche/e2e/node"
)

// bench is what the measurements share.
type bench struct {
	build string
	dir   string
	sim   *node.Sim
}

// settings are what the command line says.
type settings struct {
	build, out         string
	only               []string
	rounds, containers int
	tasks              taskCounts
	device             deviceCounts
	packing            packingCounts
}

func main() {
	var s settings
	flag.StringVar(&s.build, "build", "build", "the repository's build folder")
	flag.StringVar(&s.out, "out", "", "the file to write (default bench.tsv in the build folder)")
	only := flag.String("only", "calls,containers,tasks,device,packing", "what to measure")
	flag.IntVar(&s.rounds, "rounds", 5, "how often each variant of the calls is measured, in turns")
	flag.IntVar(&s.containers, "containers", 40, "how many containers each variant starts, in turns")
	flag.IntVar(&s.tasks.one, "tasks", 100, "how many tasks each driver starts one after another, in turns")
	flag.IntVar(&s.tasks.atOnce, "at-once", 50, "how many tasks each driver starts at once")
	flag.IntVar(&s.tasks.bursts, "bursts", 3, "how often each driver does so, in turns")
	runtimes := flag.String("runtimes", dockerRuntime, "the OCI runtimes with which our driver starts tasks")
	flag.IntVar(&s.device.fingerprints, "fingerprints", 50, "how many fingerprints of each variant are measured")
	flag.IntVar(&s.device.reserves, "reserves", 200, "how many reservations there are for each number of claims and threads")
	flag.IntVar(&s.device.ticks, "ticks", 20, "how many messages of statistics are measured")
	flag.IntVar(&s.packing.rounds, "packing-rounds", 4, "how many nodes are filled with each mix of jobs")
	flag.IntVar(&s.packing.modelled, "packing-modelled", 1000, "how many rounds of each mix a model fills")
	flag.Uint64Var(&s.packing.seed, "packing-seed", 1, "what the sizes of the jobs follow from")
	flag.Parse()
	s.only, s.tasks.runtimes = strings.Split(*only, ","), strings.Split(*runtimes, ",")
	if s.out == "" {
		s.out = filepath.Join(s.build, "bench.tsv")
	}
	if err := run(context.Background(), s); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings) error {
	b := &bench{build: s.build, dir: filepath.Join(s.build, "bench", "run")}
	if err := os.RemoveAll(b.dir); err != nil {
		return err
	}
	b.sim = node.NewSim(s.build, filepath.Join(b.dir, "driver"))
	if err := os.MkdirAll(b.sim.Root, 0o755); err != nil {
		return err
	}
	if err := b.sim.LayOut(ctx, filepath.Join(s.build, "../e2e/simgpu/topologies/h200x2.conf")); err != nil {
		return err
	}
	var results []result
	for _, part := range []struct {
		name    string
		measure func() ([]result, error)
	}{
		{"calls", func() ([]result, error) { return b.calls(ctx, s.rounds) }},
		{"containers", func() ([]result, error) { return b.containers(ctx, s.containers) }},
		{"tasks", func() ([]result, error) { return b.tasks(ctx, s.tasks) }},
		{"device", func() ([]result, error) { return b.device(ctx, s.device) }},
		{"packing", func() ([]result, error) { return b.packing(ctx, s.packing) }},
	} {
		if !slices.Contains(s.only, part.name) {
			continue
		}
		rows, err := part.measure()
		if err != nil {
			return err
		}
		results = append(results, rows...)
	}
	show(os.Stdout, results)
	if err := write(s.out, results); err != nil {
		return err
	}
	return os.RemoveAll(b.dir)
}
