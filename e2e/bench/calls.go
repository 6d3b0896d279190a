package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// calls measures single calls of the CUDA driver API: bare and shadowed in turns, so that a machine that slows down
// slows down both. The figure of a variant is the median of its rounds.
func (b *bench) calls(ctx context.Context, rounds int) ([]result, error) {
	collected := map[string][]result{}
	var order []string
	for round := range rounds {
		fmt.Printf("==> calls, round %d of %d\n", round+1, rounds)
		for _, variant := range variants() {
			rows, err := b.callRound(ctx, variant)
			if err != nil {
				return nil, err
			}
			for _, r := range rows {
				key := r.key() + " " + r.variant
				if collected[key] == nil {
					order = append(order, key)
				}
				collected[key] = append(collected[key], r)
			}
		}
	}
	var results []result
	for _, key := range order {
		all := collected[key]
		var medians, p99s []float64
		for _, r := range all {
			medians, p99s = append(medians, r.median), append(p99s, r.p99)
		}
		r := all[0]
		r.median, _ = medianOf(medians)
		r.p99, _ = medianOf(p99s)
		results = append(results, r)
	}
	return results, nil
}

// hamiLibrary names, in the environment, a built libvgpu.so of HAMi-core to be measured beside ours.
const hamiLibrary = "HAMI_LIB"

// variants are what is compared: the bare simulated driver, Tranche's library in front of it, and a peer's where one is
// named.
func variants() []string {
	if os.Getenv(hamiLibrary) != "" {
		return []string{"bare", "tranche", "hami-core"}
	}
	return []string{"bare", "tranche"}
}

// callRound runs the measuring program once.
func (b *bench) callRound(ctx context.Context, variant string) ([]result, error) {
	program := filepath.Join(b.build, "bench/callbench")
	command := []string{program, variant}
	// Kernels that take no time: a launch would otherwise wait for room in the GPU's queue, and that would be measured.
	environment := append(append(os.Environ(), b.sim.Env()...), "SIMGPU_KERNEL_US=0")
	switch variant {
	case "bare":
		environment = append(environment, "LD_LIBRARY_PATH="+filepath.Join(b.build, "sim/lib"))
	case "hami-core":
		environment = append(environment, "LD_LIBRARY_PATH="+filepath.Join(b.build, "sim/lib"),
			"LD_PRELOAD="+os.Getenv(hamiLibrary), "CUDA_DEVICE_MEMORY_LIMIT=64g")
	default:
		// Not preloaded, or loading it would cost nothing: as in a container, the loader finds it in the driver's place.
		command = append([]string{filepath.Join(b.build, "bin/tranche"), "run", "--memory", "64GiB",
			"--driver-root", b.sim.Root, "--shadow-dir", filepath.Join(b.build, "lib"), "--",
			"env", "--unset=LD_PRELOAD"}, command...)
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = environment
	out, err := cmd.Output()
	if err != nil {
		if exit := (&exec.ExitError{}); errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return nil, fmt.Errorf("measure the variant %s: %w", variant, err)
	}
	return parseRows(string(out))
}

// parseRows reads the lines that the measuring program prints.
func parseRows(text string) ([]result, error) {
	var rows []result
	for line := range strings.Lines(text) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		if len(fields) != 6 {
			return nil, fmt.Errorf("the measuring program says %q, which has not six fields", line)
		}
		threads, err1 := strconv.Atoi(fields[2])
		median, err2 := strconv.ParseFloat(fields[3], 64)
		p99, err3 := strconv.ParseFloat(fields[4], 64)
		if err := errors.Join(err1, err2, err3); err != nil {
			return nil, fmt.Errorf("the measuring program says %q: %w", line, err)
		}
		rows = append(rows, result{fields[0], fields[1], threads, median, p99, fields[5]})
	}
	return rows, nil
}
