// Package shares runs governed claims on a simulated GPU, without containers, and judges by the simulator's record what each of
// them had of the GPU's time. The benchmark and tests of compute shares use it.
package shares

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/tranche-gpu/tranche/e2e/node"
	"github.com/tranche-gpu/tranche/governor/status"
)

// Node is a node with simulated GPUs and a governor.
type Node struct {
	build, dir string
	sim        *node.Sim
	governor   *exec.Cmd
	log        *os.File
}

// Start lays out the GPUs of a topology in dir and starts a governor. The build folder has what it runs.
func Start(ctx context.Context, build, dir, topology string) (*Node, error) {
	for _, path := range []*string{&build, &dir} {
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return nil, err
		}
		*path = absolute
	}
	n := &Node{build: build, dir: dir, sim: node.NewSim(build, filepath.Join(dir, "driver"))}
	for _, sub := range []string{n.sim.Root, n.runDir(), n.stateDir()} {
		if err := os.MkdirAll(sub, 0o755); err != nil {
			return nil, err
		}
	}
	if err := n.sim.LayOut(ctx, topology); err != nil {
		return nil, err
	}
	var err error
	if n.log, err = os.Create(n.LogFile()); err != nil {
		return nil, err
	}
	return n, n.StartGovernor(ctx)
}

func (n *Node) runDir() string   { return filepath.Join(n.dir, "run") }
func (n *Node) stateDir() string { return filepath.Join(n.dir, "state") }

// LogFile is where the governors write their logs.
func (n *Node) LogFile() string { return filepath.Join(n.dir, "governor.log") }

// StartGovernor starts a governor and waits until it has published its status.
func (n *Node) StartGovernor(ctx context.Context) error {
	began := time.Now()
	// It outlives the context of its start.
	n.governor = n.command(context.WithoutCancel(ctx), "governor", "--driver-root", n.sim.Root)
	n.governor.Stdout, n.governor.Stderr = n.log, n.log
	if err := n.governor.Start(); err != nil {
		return fmt.Errorf("start the governor: %w", err)
	}
	return n.await(ctx, "the governor's status", func() (bool, error) {
		published, err := status.Read(n.runDir())
		return published != nil && published.Written.After(began), err
	})
}

// command is one of tranche's on this node.
func (n *Node) command(ctx context.Context, args ...string) *exec.Cmd {
	args = append(args, "--run-dir", n.runDir(), "--state-dir", n.stateDir())
	cmd := exec.CommandContext(ctx, filepath.Join(n.build, "bin/tranche"), args...)
	cmd.Env = append(os.Environ(), n.sim.Env()...)
	return cmd
}

// KillGovernor kills the governor with SIGKILL.
func (n *Node) KillGovernor() error {
	if err := n.governor.Process.Kill(); err != nil {
		return err
	}
	_ = n.governor.Wait() // it was killed
	return nil
}

// Close ends the governor.
func (n *Node) Close() error {
	err := n.governor.Process.Signal(os.Interrupt)
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	if err == nil {
		_ = n.governor.Wait() // by the signal, or killed before
	}
	return errors.Join(err, n.log.Close())
}

// Status is what the governor says, with which nothing is judged.
func (n *Node) Status() (*status.Status, error) { return status.Read(n.runDir()) }

// AwaitNamed waits until `tranche status --json` names the processes of a load among those that have not joined.
func (n *Node) AwaitNamed(ctx context.Context, l *Load) error {
	pids, err := l.pids()
	if err != nil {
		return err
	}
	return n.await(ctx, "the names of those who bypass", func() (bool, error) {
		named, err := n.named(ctx)
		return !slices.ContainsFunc(pids, func(pid int) bool { return !slices.Contains(named, pid) }), err
	})
}

// named returns the processes that have not joined, as `tranche status --json` says.
func (n *Node) named(ctx context.Context) (pids []int, err error) {
	out, err := n.command(ctx, "status", "--json", "--driver-root", n.sim.Root).Output()
	if err != nil {
		return nil, fmt.Errorf("tranche status: %w", err)
	}
	var s struct {
		Claims []struct{ Turns *status.Claim }
	}
	if err := json.Unmarshal(out, &s); err != nil {
		return nil, fmt.Errorf("tranche status: %w", err)
	}
	for _, c := range s.Claims {
		if c.Turns == nil {
			continue
		}
		for _, p := range c.Turns.NotJoined {
			pids = append(pids, p.PID)
		}
	}
	return pids, nil
}

// await waits until something is so.
func (n *Node) await(ctx context.Context, what string, so func() (bool, error)) error {
	for {
		if ok, err := so(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			log, _ := os.ReadFile(n.LogFile())
			return fmt.Errorf("wait for %s: %w; the governor's log:\n%s", what, ctx.Err(), log)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
