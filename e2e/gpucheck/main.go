// Command gpu-check checks on a real GPU what the tests check on the simulated one, and writes a report. It is what the
// bundle build/gpu-check.tar.gz starts: it needs the GPU's driver and nothing else, and looks at PyTorch where there is
// one. Everything that touches the GPU happens in processes of their own, so that this one survives them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// atMost is how long all of it may take; what has not begun by then is not possible any more.
const atMost = 10 * time.Minute

// toFinish is kept of that for the report.
const toFinish = 20 * time.Second

type options struct {
	gpu, python, driverDir, report, only, bundle string
	minutes                                      float64
}

func main() {
	var o options
	flag.StringVar(&o.gpu, "gpu", "", "`index` or UUID of the GPU, as CUDA_VISIBLE_DEVICES takes it (default: the first)")
	flag.StringVar(&o.python, "python", "", "Python `interpreter` that has PyTorch (default: python3 on the PATH)")
	flag.StringVar(&o.driverDir, "driver-dir", "",
		"`directory` with the driver's libraries, where the loader does not find them by itself")
	flag.StringVar(&o.report, "report", "gpu-check-report.md", "`file` to write")
	flag.StringVar(&o.only, "only", "", "`name` of a group of checks, such as \"compute shares\" (default: all)")
	flag.Float64Var(&o.minutes, "minutes", atMost.Minutes(), "how many `minutes` it may take, ten at most")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), `Checks on this machine's GPU that Tranche's limits hold, and writes a report.

It takes at most a quarter of what is free on the GPU, and never more than 4 GiB, ten minutes at most; processes of others
are left alone. The exit status is 0 if nothing failed, 1 if something did, 2 if there was nothing to check.

usage: gpu-check [FLAG...]
`)
		flag.PrintDefaults()
	}
	flag.Parse()
	os.Exit(run(o, os.Stdout))
}

// run returns the exit status: 0 if nothing failed, 1 if something did, 2 if there was nothing to check.
func run(o options, out io.Writer) int {
	o.minutes = min(o.minutes, atMost.Minutes())
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, time.Duration(o.minutes*float64(time.Minute))-toFinish)
	defer cancel()

	c := &checker{options: o, out: out, report: newReport(), began: time.Now()}
	err := c.prepare(ctx)
	if err == nil {
		c.all(ctx)
	} else {
		c.report.stopped = err.Error()
		fmt.Fprintf(out, "gpu-check: %v\n", err)
	}
	c.cleanUp()
	if err := os.WriteFile(o.report, []byte(c.report.markdown(time.Since(c.began))), 0o644); err != nil {
		fmt.Fprintf(out, "gpu-check: %v\n", err)
		return 2
	}
	fmt.Fprintf(out, "%s: %s\n", o.report, c.report.summary())
	switch {
	case c.report.stopped != "":
		return 2
	case c.report.count(failed) > 0:
		return 1
	default:
		return 0
	}
}

// checker is one run.
type checker struct {
	options
	out    io.Writer
	began  time.Time
	report *report

	machine machine
	watcher *watcher
	work    string // a directory of our own
	claims  int    // how many were made
	python  string // one that has PyTorch; "" if there is none
}

// all runs one group of checks after the other. None stops the others.
func (c *checker) all(ctx context.Context) {
	groups := []struct {
		name string
		run  func(context.Context)
	}{
		{"every way to allocate", c.checkWays},
		{"what a context keeps for kernels", c.checkContextLimits},
		{"memory that processes share", c.checkSharing},
		{"processes", c.checkProcesses},
		{"what monitoring shows", c.checkMonitoring},
		{"compute shares", c.checkTurns},
		{"cudart", c.checkCudart},
		{"PyTorch", c.checkTorch},
		{"llama.cpp", c.checkLlama},
		{"MPS", c.checkMPS},
		{"overhead", c.measureOverhead},
		{"the driver's functions", c.listSymbols},
		{"facts", c.collectFacts},
	}
	var names []string
	for _, group := range groups {
		names = append(names, group.name)
	}
	if c.only != "" && !slices.Contains(names, c.only) {
		c.report.stopped = fmt.Sprintf("-only: no group of checks is called %q: name one of %s", c.only, strings.Join(names, ", "))
		return
	}
	for _, group := range groups {
		if c.only != "" && c.only != group.name {
			continue
		}
		fmt.Fprintf(c.out, "==> %s\n", group.name)
		c.report.group = group.name
		if ctx.Err() != nil {
			c.note("all of it", notPossible, "there was no time left, or somebody stopped the run")
			continue
		}
		group.run(ctx)
	}
}

// note enters the outcome of a check, and says it aloud where it is not that all is well.
func (c *checker) note(name string, verdict verdict, detail string) {
	c.report.add(name, verdict, detail)
	if verdict != passed {
		fmt.Fprintf(c.out, "    %s: %s: %s\n", name, verdict, detail)
	}
}

// conclude enters what a check came to: failures, or that it passed and with what figures.
func (c *checker) conclude(name string, failures []string, figures string) {
	if len(failures) == 0 {
		c.note(name, passed, figures)
		return
	}
	detail := join(failures)
	if figures != "" {
		detail += " (" + figures + ")"
	}
	c.note(name, failed, detail)
}

// broken enters a check that came to no result. A driver that lacks what is checked makes it impossible, everything else
// is a failure.
func (c *checker) broken(name string, err error) {
	var no *impossibleError
	if errors.As(err, &no) {
		c.note(name, notPossible, no.why)
		return
	}
	c.note(name, failed, err.Error())
}

func (c *checker) prepare(ctx context.Context) error {
	if err := c.findBundle(); err != nil {
		return err
	}
	var err error
	if c.work, err = os.MkdirTemp("", "gpu-check-"); err != nil {
		return err
	}
	if err := c.lookAtMachine(ctx); err != nil {
		return err
	}
	c.lookForTorch(ctx)
	toolkits, _ := filepath.Glob("/usr/local/cuda*/lib64")
	c.machine.cudaLibraries = append(c.machine.cudaLibraries, toolkits...)
	c.describeMachine()
	return nil
}

// findBundle finds the files that lie beside this program.
func (c *checker) findBundle() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c.bundle = filepath.Dir(self)
	for _, name := range []string{
		"bin/probe", "bin/watch", "bin/callbench", "lib/libcuda.so.1", "lib/libnvidia-ml.so.1", "lib/governed/libcuda.so.1",
	} {
		if _, err := os.Stat(filepath.Join(c.bundle, name)); err != nil {
			return fmt.Errorf("the bundle is not complete: %w", err)
		}
	}
	return nil
}

func (c *checker) program(name string) string { return filepath.Join(c.bundle, "bin", name) }

func (c *checker) cleanUp() {
	if c.watcher != nil {
		c.watcher.close()
	}
	if c.work != "" {
		_ = os.RemoveAll(c.work)
	}
}

// output runs a program to its end and returns what it prints.
func (c *checker) output(ctx context.Context, patience time.Duration, env []string, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = env
	cmd.WaitDelay = time.Second // a program that cannot be killed must not hold us up
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var errs lastBytes
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("it did not end within %v", patience)
		}
		return string(out), fmt.Errorf("%s: %w%s", filepath.Base(name), err, errs.said())
	}
	return string(out), nil
}
