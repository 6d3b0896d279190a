// Command bench measures what Tranche costs, side by side with doing without it, in one run: calls of the CUDA driver
// through the shadow and straight to the simulated driver, containers through tranche-runtime and through runc, and
// tasks of Nomad through our task driver and through Nomad's docker driver, where Docker is installed; what the device
// plugin and the agent take; how full GPUs get before a job has to wait; and how
// exact shares of compute are, and what they cost.
// It prints a table and writes build/bench.tsv.
//
//	bench -build DIR [-out FILE] [-only PART,…] [-rounds N] [-containers N] [-tasks N] [-at-once N] [-bursts N]
//	  [-runtimes NAME,…] [-fingerprints N] [-reserves N] [-ticks N] [-scrapes N] [-scrape-periods N]
//	  [-packing-rounds N] [-packing-modelled N] [-packing-seed N] [-shares-window DURATION]
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tranche-gpu/tranche/e2e/node"
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
	agent              agentCounts
	packing            packingCounts
	sharesWindow       time.Duration
}

func main() {
	var s settings
	flag.StringVar(&s.build, "build", "build", "the repository's build folder")
	flag.StringVar(&s.out, "out", "", "the file to write (default bench.tsv in the build folder)")
	only := flag.String("only", strings.Join(partNames(), ","), "what to measure")
	flag.IntVar(&s.rounds, "rounds", 5, "how often each variant of the calls is measured, in turns")
	flag.IntVar(&s.containers, "containers", 40, "how many containers each variant starts, in turns")
	flag.IntVar(&s.tasks.one, "tasks", 100, "how many tasks each driver starts one after another, in turns")
	flag.IntVar(&s.tasks.atOnce, "at-once", 50, "how many tasks each driver starts at once")
	flag.IntVar(&s.tasks.bursts, "bursts", 3, "how often each driver does so, in turns")
	runtimes := flag.String("runtimes", dockerRuntime, "the OCI runtimes with which our driver starts tasks")
	flag.IntVar(&s.device.fingerprints, "fingerprints", 50, "how many fingerprints of each variant are measured")
	flag.IntVar(&s.device.reserves, "reserves", 200, "how many reservations there are for each number of claims and threads")
	flag.IntVar(&s.device.ticks, "ticks", 20, "how many messages of statistics are measured")
	flag.IntVar(&s.agent.scrapes, "scrapes", 50, "how many scrapes of the agent are measured")
	flag.IntVar(&s.agent.periods, "scrape-periods", 4, "over how many periods of 15 seconds the agent's processor time is")
	flag.IntVar(&s.packing.rounds, "packing-rounds", 4, "how many nodes are filled with each mix of jobs")
	flag.IntVar(&s.packing.modelled, "packing-modelled", 1000, "how many rounds of each mix a model fills")
	flag.Uint64Var(&s.packing.seed, "packing-seed", 1, "what the sizes of the jobs follow from")
	flag.DurationVar(&s.sharesWindow, "shares-window", 10*time.Second, "how long each mix of loads is measured")
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

// part is something that is measured by itself.
type part struct {
	name    string
	measure func(*bench, context.Context, settings) ([]result, error)
}

var parts = []part{
	{"calls", func(b *bench, ctx context.Context, s settings) ([]result, error) { return b.calls(ctx, s.rounds) }},
	{"containers", func(b *bench, ctx context.Context, s settings) ([]result, error) {
		return b.containers(ctx, s.containers)
	}},
	{"tasks", func(b *bench, ctx context.Context, s settings) ([]result, error) { return b.tasks(ctx, s.tasks) }},
	{"device", func(b *bench, ctx context.Context, s settings) ([]result, error) { return b.device(ctx, s.device) }},
	{"agent", func(b *bench, ctx context.Context, s settings) ([]result, error) { return b.agent(ctx, s.agent) }},
	{"packing", func(b *bench, ctx context.Context, s settings) ([]result, error) { return b.packing(ctx, s.packing) }},
	{"shares", func(b *bench, ctx context.Context, s settings) ([]result, error) {
		return b.shares(ctx, s.sharesWindow)
	}},
}

// partNames lists what can be measured.
func partNames() []string {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	return names
}

// chosen are the parts of these names, in the order in which they are measured.
func chosen(names []string) ([]part, error) {
	for _, name := range names {
		if !slices.Contains(partNames(), name) {
			return nil, fmt.Errorf("-only %s: %q is nothing that can be measured; there are %s",
				strings.Join(names, ","), name, strings.Join(partNames(), ", "))
		}
	}
	return slices.DeleteFunc(slices.Clone(parts), func(p part) bool { return !slices.Contains(names, p.name) }), nil
}

func run(ctx context.Context, s settings) error {
	measured, err := chosen(s.only)
	if err != nil {
		return err
	}
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
	for _, p := range measured {
		rows, err := p.measure(b, ctx, s)
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
