package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"github.com/tranche-gpu/tranche/claim"
)

const (
	// agentClaims is with how many claims the agent is measured.
	agentClaims = 100
	// scrapePeriod is Prometheus's as docs/operations.md has it.
	scrapePeriod = 15 * time.Second
	// scrapePause lets each scrape find a new state: snapshots are shared for a second.
	scrapePause = 1100 * time.Millisecond
)

// agentCounts says how much is measured of the agent: scrapes, and for how many periods of scrapes its processor time.
type agentCounts struct{ scrapes, periods int }

// agentProcess is `tranche agent` in a process of its own.
type agentProcess struct {
	cmd *exec.Cmd
	url string
}

// agent measures what the agent costs on a node with eight GPUs and a hundred claims.
func (b *bench) agent(ctx context.Context, counts agentCounts) (_ []result, err error) {
	if counts.scrapes < 1 || counts.periods < 1 {
		return nil, fmt.Errorf("-scrapes %d and -scrape-periods %d have to be 1 or more", counts.scrapes, counts.periods)
	}
	n, err := b.newDeviceNode(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.log.Close()) }()
	stopProgram, err := n.startProgram(ctx, filepath.Join(b.build, "e2e/gpu-probe"))
	if err != nil {
		return nil, err
	}
	defer stopProgram()
	a, err := n.startAgent(ctx, filepath.Join(b.build, "bin/tranche"))
	if err != nil {
		return nil, err
	}
	defer a.stop()
	fmt.Printf("==> the agent with %d claims, scraped %d times, and for %s every %s\n", agentClaims, counts.scrapes,
		time.Duration(counts.periods)*scrapePeriod, scrapePeriod)
	variant := fmt.Sprintf("gpus-%d-claims-%d", deviceGPUs, agentClaims)
	scrape := result{benchmark: "agent-scrape", variant: variant, threads: 1, unit: "ms"}
	var took []float64
	for range counts.scrapes {
		time.Sleep(scrapePause)
		milliseconds, err := a.scrape(ctx)
		if err != nil {
			return nil, err
		}
		took = append(took, milliseconds)
	}
	scrape.median, scrape.p99 = medianOf(took)
	cpu := result{benchmark: "agent-cpu", variant: variant, threads: 1, unit: "% of a core"}
	var parts []float64
	for range counts.periods {
		part, err := a.period(ctx)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	cpu.median, cpu.p99 = medianOf(parts)
	memory, err := a.memory()
	return []result{scrape, cpu, {"agent-memory", variant, 1, memory, memory, "MiB"}}, err
}

// startProgram runs a program that uses all GPUs and has no claim, so that the agent has to find out whose it is.
func (n *deviceNode) startProgram(ctx context.Context, path string) (stop func(), err error) {
	cmd := exec.CommandContext(ctx, path, "take", "64")
	cmd.Env = append(os.Environ(), append(n.sim.Env(), "LD_LIBRARY_PATH="+filepath.Join(filepath.Dir(path), "../sim/lib"))...)
	cmd.Stdout = io.Discard
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }, nil
}

// startAgent starts the agent on a filled ledger.
func (n *deviceNode) startAgent(ctx context.Context, path string) (*agentProcess, error) {
	state, run := filepath.Join(n.dir, "state-agent"), filepath.Join(n.dir, "run-agent")
	ledger, err := claim.Open(claim.Options{StateDir: state, RunDir: run})
	if err != nil {
		return nil, err
	}
	uuids, err := n.uuids(ctx)
	if err == nil {
		err = fill(ctx, ledger, uuids, agentClaims)
	}
	if err == nil {
		err = age(ctx)
	}
	if err != nil {
		return nil, err
	}
	a := &agentProcess{cmd: exec.CommandContext(ctx, path, "agent", "--listen", "127.0.0.1:0", "--driver-root", n.sim.Root,
		"--state-dir", state, "--run-dir", run)}
	a.cmd.Env = append(os.Environ(), n.sim.Env()...)
	log, err := a.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := a.cmd.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		if _, address, ok := strings.Cut(lines.Text(), "listening: address="); ok {
			a.url = address + "metrics"
			go func() { _, _ = io.Copy(n.log, log) }()
			return a, nil
		}
	}
	a.stop()
	return nil, errors.New("the agent ended before it listened")
}

func (a *agentProcess) stop() { _ = a.cmd.Process.Kill(); _ = a.cmd.Wait() }

// scrape returns the milliseconds that a scrape takes.
func (a *agentProcess) scrape(ctx context.Context) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url, nil)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	took := milliseconds(time.Since(began))
	if claims := bytes.Count(body, []byte("\ntranche_claim_memory_used_bytes{")); claims != agentClaims {
		return 0, fmt.Errorf("the metrics are of %d claims, not %d", claims, agentClaims)
	}
	return took, nil
}

// period returns the percentage of a core that the agent takes over a period with one scrape.
func (a *agentProcess) period(ctx context.Context) (float64, error) {
	before, err := cpuTime(a.cmd.Process.Pid)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if _, err := a.scrape(ctx); err != nil {
		return 0, err
	}
	select {
	case <-time.After(scrapePeriod - time.Since(began)):
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	after, err := cpuTime(a.cmd.Process.Pid)
	return 100 * (after - before).Seconds() / time.Since(began).Seconds(), err
}

// memory returns the agent's resident memory in MiB.
func (a *agentProcess) memory() (float64, error) {
	process, err := procfs.NewProc(a.cmd.Process.Pid)
	if err != nil {
		return 0, err
	}
	stat, err := process.Stat()
	return float64(stat.ResidentMemory()) / (1 << 20), err
}
