// Command bench measures what Tranche costs, side by side with doing without it, in one run: calls of the CUDA driver
// through the shadow and straight to the simulated driver, and containers through tranche-runtime and through runc.
// It prints a table and writes build/bench.tsv.
//
//	bench -build DIR [-out FILE] [-rounds N] [-containers N]
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"tranche.dev/tranche/e2e/node"
)

// result is one line of bench.tsv.
type result struct {
	benchmark, variant string
	threads            int
	median, p99        float64
	unit               string
}

// bench is what the measurements share.
type bench struct {
	build string
	dir   string
	sim   *node.Sim
}

func main() {
	build := flag.String("build", "build", "the repository's build folder")
	rounds := flag.Int("rounds", 5, "how often each variant of the calls is measured, in turns")
	containers := flag.Int("containers", 40, "how many containers each variant starts, in turns")
	out := flag.String("out", "", "the file to write (default bench.tsv in the build folder)")
	flag.Parse()
	if *out == "" {
		*out = filepath.Join(*build, "bench.tsv")
	}
	if err := run(context.Background(), *build, *out, *rounds, *containers); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, build, out string, rounds, containers int) error {
	b := &bench{build: build, dir: filepath.Join(build, "bench", "run")}
	if err := os.RemoveAll(b.dir); err != nil {
		return err
	}
	b.sim = node.NewSim(build, filepath.Join(b.dir, "driver"))
	if err := os.MkdirAll(b.sim.Root, 0o755); err != nil {
		return err
	}
	if err := b.sim.LayOut(ctx, filepath.Join(build, "../e2e/simgpu/topologies/h200x2.conf")); err != nil {
		return err
	}
	results, err := b.calls(ctx, rounds)
	if err != nil {
		return err
	}
	starts, err := b.containers(ctx, containers)
	if err != nil {
		return err
	}
	results = append(results, starts...)
	show(results)
	if err := write(out, results); err != nil {
		return err
	}
	return os.RemoveAll(b.dir)
}

// medianOf returns the median and the 99th percentile of samples, which it sorts.
func medianOf(samples []float64) (median, p99 float64) {
	slices.Sort(samples)
	return samples[len(samples)/2], samples[(len(samples)*99)/100]
}

// show prints the results as a table, each variant beside what it costs without Tranche.
func show(results []result) {
	bare := map[string]float64{}
	for _, r := range results {
		if r.variant == "bare" {
			bare[r.key()] = r.median
		}
	}
	fmt.Println("SIMULATED GPU; medians. The difference is to the variant \"bare\" of the same run.")
	tw := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "benchmark\tvariant\tthreads\tmedian\tp99\tunit\tdifference\t")
	for _, r := range results {
		difference := ""
		if r.variant != "bare" {
			difference = fmt.Sprintf("%+.1f", r.median-bare[r.key()])
		}
		fmt.Fprintf(tw, "%s\t%s\t%d\t%.1f\t%.1f\t%s\t%s\t\n", r.benchmark, r.variant, r.threads, r.median, r.p99, r.unit, difference)
	}
	_ = tw.Flush()
}

// key is what a result has in common with its other variants.
func (r result) key() string { return r.benchmark + " " + strconv.Itoa(r.threads) }

// write writes the results as tab-separated values.
func write(path string, results []result) error {
	var b strings.Builder
	b.WriteString("benchmark\tvariant\tthreads\tmedian\tp99\tunit\n")
	for _, r := range results {
		fmt.Fprintf(&b, "%s\t%s\t%d\t%.1f\t%.1f\t%s\n", r.benchmark, r.variant, r.threads, r.median, r.p99, r.unit)
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}
