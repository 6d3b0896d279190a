// Package contextcost measures the memory that a CUDA context takes on a GPU before its first allocation. It is hundreds of
// MiB, differs by GPU and by driver, and counts against a claim's limit for each process of the claim.
//
// A context is created in a child process, so that the caller never has one. The child is the caller's own binary: its main
// must call ChildMain before anything else.
package contextcost

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/tranche-gpu/tranche/internal/size"
)

const (
	// DefaultBytes is assumed if a context cannot be measured. It is more than on any GPU that was measured, so that
	// processes are charged too much rather than too little.
	DefaultBytes = 512 << 20

	// measureTimeout bounds one measurement. The first context on an idle GPU takes a few seconds, because the driver wakes
	// it.
	measureTimeout = 30 * time.Second

	// childName is the name under which the binary is the measuring child.
	childName = "tranche-context-cost"
)

// childReady is set by ChildMain. Without it a child would run the binary's own main instead.
var childReady bool

// measurement is what the child prints.
type measurement struct {
	// Bytes is the memory of the context, and Method how it was measured.
	Bytes  uint64 `json:"bytes"`
	Method string `json:"method"`
}

// Measure creates a context on the GPU with this UUID and returns its memory in bytes, rounded up to the GPU's granularity.
func Measure(ctx context.Context, driverRoot, uuid string) (uint64, error) {
	if !childReady {
		return 0, errors.New("measure a CUDA context: main has to call contextcost.ChildMain first")
	}
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()

	type result struct {
		bytes uint64
		err   error
	}
	// A child that hangs in the driver cannot be killed; the caller must not wait for it.
	done := make(chan result, 1)
	go func() {
		cost, err := runChild(ctx, driverRoot, uuid)
		done <- result{cost, err}
	}()
	select {
	case r := <-done:
		return r.bytes, r.err
	case <-ctx.Done():
		return 0, fmt.Errorf("measure a CUDA context on %s: the driver did not answer in time: %w", uuid, ctx.Err())
	}
}

func runChild(ctx context.Context, driverRoot, uuid string) (uint64, error) {
	// The death signal is sent when the thread that started the child ends, so the thread has to exist as long as the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	var stdout, stderr bytes.Buffer
	child := exec.CommandContext(ctx, "/proc/self/exe")
	child.Args = []string{childName, driverRoot, uuid}
	child.Env = childEnv(os.Environ(), uuid)
	child.Stdout, child.Stderr = &stdout, &stderr
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := child.Run(); err != nil {
		return 0, fmt.Errorf("measure a CUDA context on %s: %w: %s", uuid, err, strings.TrimSpace(stderr.String()))
	}
	var measured measurement
	if err := json.Unmarshal(stdout.Bytes(), &measured); err != nil {
		return 0, fmt.Errorf("measure a CUDA context on %s: the child printed %q: %w", uuid, stdout.String(), err)
	}
	return roundUp(measured.Bytes), nil
}

// childEnv returns the environment without variables that load another library instead of the driver's, hide the GPU or
// change the memory of a context.
func childEnv(env []string, uuid string) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		for _, prefix := range []string{"LD_PRELOAD=", "CUDA_", "TRANCHE_", "NOMAD_"} {
			if strings.HasPrefix(entry, prefix) {
				return true
			}
		}
		return false
	})
	// With it the driver does not initialize the other GPUs.
	return append(env, "CUDA_VISIBLE_DEVICES="+uuid)
}

func roundUp(bytes uint64) uint64 {
	return (bytes + size.GPUUnit - 1) / size.GPUUnit * size.GPUUnit
}
