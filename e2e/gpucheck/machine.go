package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

const (
	mib = 1 << 20
	// granularity is the unit in which a GPU hands out memory.
	granularity = 2 * mib
	// mostBytes is the highest limit that the checks use, however large the GPU is.
	mostBytes = 4 << 30
	// startPatience is how long the first use of a GPU may take, which wakes it.
	startPatience = 60 * time.Second
)

// machine is what was found.
type machine struct {
	name, uuid, digits, driver string
	cudaFile, nvmlFile         string
	cuda, major, minor         int
	multiprocessors, threads   int
	simulated                  bool

	totalBytes, freeBytes  uint64
	contextBytes           uint64
	contextHow, torch, smi string
	limitBytes             uint64
	processesSeen          string
	cudaLibraries          []string // directories of CUDA's libraries that PyTorch or a toolkit has brought
}

// visible is what CUDA_VISIBLE_DEVICES has to be so that the first device is the GPU that is checked.
func (m *machine) visible(wanted string) string {
	if m.uuid != "" {
		return m.uuid
	}
	return wanted
}

func (c *checker) lookAtMachine(ctx context.Context) error {
	if os.Getenv("TRANCHE_REGIONS") != "" {
		return errors.New("this is already under a limit of `tranche run`: run it without")
	}
	if _, err := os.Lstat("/.tranche"); err == nil {
		return errors.New("this is a container with a limit of its own: run it outside")
	}
	if err := c.lookAtGPU(ctx); err != nil {
		return err
	}
	if err := c.measureContext(ctx); err != nil {
		return fmt.Errorf("making a CUDA context on the GPU: %w", err)
	}
	return c.chooseLimit()
}

func (c *checker) lookAtGPU(ctx context.Context) error {
	out, err := c.output(ctx, startPatience, c.bareEnv(), c.program("probe"), "look")
	if err != nil {
		return fmt.Errorf("there is no GPU to check: %w", err)
	}
	var gpu struct {
		File, Name, UUID                             string
		CUDA, Major, Minor, Multiprocessors, Threads int
	}
	if err := json.Unmarshal([]byte(out), &gpu); err != nil {
		return fmt.Errorf("looking at the GPU: %w", err)
	}
	m := &c.machine
	if gpu.File, err = filepath.Abs(gpu.File); err != nil {
		return err
	}
	m.name, m.digits, m.cudaFile, m.cuda = gpu.Name, gpu.UUID, gpu.File, gpu.CUDA
	m.major, m.minor, m.multiprocessors, m.threads = gpu.Major, gpu.Minor, gpu.Multiprocessors, gpu.Threads
	if c.watcher, err = c.watch(c.bareEnv(), m.digits); err != nil {
		return fmt.Errorf("there is nothing to compare with: %w", err)
	}
	m.uuid, m.driver = c.watcher.uuid, c.watcher.driver
	if m.nvmlFile, err = filepath.Abs(c.watcher.file); err != nil {
		return err
	}
	m.simulated = isSimulated(m.cudaFile)
	if m.smi, err = exec.LookPath("nvidia-smi"); err != nil {
		m.smi = ""
	}
	return nil
}

// isSimulated tells the simulated GPU's library by the variable that it is steered with, which no driver knows.
func isSimulated(file string) bool {
	content, err := os.ReadFile(file)
	return err == nil && bytes.Contains(content, []byte("SIMGPU_STATE"))
}

// measureContext learns what a context costs before the first allocation, as Tranche itself does.
func (c *checker) measureContext(ctx context.Context) error {
	before, err := c.watcher.sample()
	if err != nil {
		return err
	}
	p, err := c.start(c.bareEnv(), c.program("probe"), "obey")
	if err != nil {
		return err
	}
	defer p.kill()
	if _, err := p.next(ctx, startPatience); err != nil {
		return err
	}
	during, err := c.watcher.sample()
	if err != nil {
		return err
	}
	m := &c.machine
	bytes, seen := during.bytesOf(p.pid())
	m.contextHow, m.processesSeen = "NVML, of the process", "yes"
	if !seen {
		m.processesSeen = "no: the change of the whole GPU's memory stands in for it"
		m.contextHow = "NVML, the change of the whole GPU's memory"
		bytes = during.Used - min(before.Used, during.Used)
	}
	m.contextBytes = (bytes + granularity - 1) / granularity * granularity
	m.totalBytes = before.Total
	return nil
}

func (c *checker) chooseLimit() error {
	now, err := c.watcher.sample()
	if err != nil {
		return err
	}
	m := &c.machine
	m.freeBytes = now.Free
	m.limitBytes = min(uint64(mostBytes), now.Free/4) / granularity * granularity
	if m.limitBytes < 2*m.contextBytes+512*mib {
		return fmt.Errorf("only %s of the GPU are free, and the checks take a quarter of that at most: too little for two "+
			"contexts of %s; name another GPU with -gpu", size(now.Free), size(m.contextBytes))
	}
	return nil
}

func (c *checker) describeMachine() {
	m := &c.machine
	toolkit := "none found"
	if nvcc, err := exec.LookPath("nvcc"); err == nil {
		if out, err := exec.Command(nvcc, "--version").Output(); err == nil {
			toolkit = lastLine(string(out))
		}
	}
	user := fmt.Sprintf("user %d", os.Getuid())
	if os.Getuid() == 0 {
		user = "root"
	}
	c.report.simulated = m.simulated
	c.report.machine = [][2]string{
		{"GPU", m.name},
		{"compute capability, multiprocessors", fmt.Sprintf("%d.%d, %d", m.major, m.minor, m.multiprocessors)},
		{"driver", m.driver},
		{"CUDA version of the driver", fmt.Sprintf("%d.%d", m.cuda/1000, m.cuda%1000/10)},
		{"memory, and free of it at the beginning", size(m.totalBytes) + ", " + size(m.freeBytes)},
		{"limit of the checks", size(m.limitBytes) + ", unless stated otherwise"},
		{"cost of a context", size(m.contextBytes) + " (" + m.contextHow + ")"},
		{"NVML shows what a process holds", m.processesSeen},
		{"libcuda.so.1 that the loader finds", m.cudaFile},
		{"CUDA toolkit", toolkit},
		{"PyTorch", c.machine.torch},
		{"run as", user},
		{"kernel, architecture", kernelVersion() + ", " + runtime.GOARCH},
		{"begun", c.began.UTC().Format(time.RFC3339)},
	}
}

func kernelVersion() string {
	text, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "unknown"
	}
	version, _, _ := strings.Cut(strings.TrimSpace(string(text)), "-")
	return version
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
