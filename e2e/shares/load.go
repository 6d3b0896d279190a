package shares

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/google/renameio/v2"

	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// Load is a program that keeps the first GPU busy, build/e2e/load, under a claim of its own or without.
type Load struct {
	name   string
	cmd    *exec.Cmd
	stdout *bufio.Reader
	pipe   io.Closer
	errors lockedBuffer
}

// Times are a load's figures of one kind.
type Times struct{ P50, P99, Longest float64 }

// Report is what a load says at its end, since the last Forget.
type Report struct {
	Launches  uint64
	RequestUS Times `json:"request_us"`
	LaunchNS  Times `json:"launch_ns"`
}

// Claim is how a load is run: what is before its command, as variables of its environment in place of those that `tranche run` sets,
// and the flags of `tranche run`; nil is a load without a claim, which does not join.
type Claim []string

// Bypassing returns the claim with a load that finds the driver's library, and nothing of Tranche's.
func (n *Node) Bypassing(c Claim) Claim {
	return append(Claim{"LD_PRELOAD=", "TRANCHE_REGIONS=", "LD_LIBRARY_PATH=" + filepath.Join(n.build, "sim/lib")}, c...)
}

// WithBypassing returns the claim with another load beside its own one, under a name of its own, that finds the driver's library.
func (n *Node) WithBypassing(name string, c Claim) Claim {
	beside := append(n.Bypassing(nil), "SIMGPU_LABEL="+name, filepath.Join(n.build, "e2e/load"), "--kernel", "1000")
	return append(Claim{"sh", "-c", "env " + strings.Join(beside, " ") + ` & exec "$@"`, "sh"}, c...)
}

// WithOthers returns the claim with further loads beside its own one, each after the one before has ended.
func (n *Node) WithOthers(c Claim, args ...string) Claim {
	other := filepath.Join(n.build, "e2e/load") + " " + strings.Join(args, " ")
	return append(Claim{"sh", "-c", "while " + other + `; do :; done & exec "$@"`, "sh"}, c...)
}

// BypassingUngoverned returns the claim with a load that finds the ungoverned library.
func (n *Node) BypassingUngoverned(c Claim) (Claim, error) {
	dir := filepath.Join(n.dir, "ungoverned")
	behind := filepath.Join(dir, shadow.Behind(shadow.CUDA))
	err := os.MkdirAll(filepath.Dir(behind), 0o755)
	for link, target := range map[string]string{
		behind: filepath.Join(n.build, "sim/lib", shadow.CUDA), filepath.Join(dir, shadow.CUDA): filepath.Join(n.build, "lib", shadow.CUDA),
	} {
		if err == nil {
			err = renameio.Symlink(target, link)
		}
	}
	return append(Claim{"LD_PRELOAD=", "LD_LIBRARY_PATH=" + dir}, c...), err
}

// Share is a claim with this share in percent.
func Share(percent float64) Claim {
	return Claim{"--share", strconv.FormatFloat(percent, 'f', -1, 64)}
}

// Max adds a ceiling in percent.
func (c Claim) Max(percent int) Claim { return append(c, "--max", strconv.Itoa(percent)) }

// Priority adds a class.
func (c Claim) Priority(class string) Claim { return append(c, "--priority", class) }

// Start starts a load under a name, by which the record is read, and waits until its first kernel has ended.
func (n *Node) Start(ctx context.Context, name string, claim Claim, args ...string) (*Load, error) {
	command := append([]string{filepath.Join(n.build, "e2e/load"), "--ready", "--report"}, args...)
	flags := slices.IndexFunc(claim, func(arg string) bool { return strings.HasPrefix(arg, "--") })
	if flags > 0 {
		command = slices.Concat([]string{"env"}, claim[:flags], command)
		claim = claim[flags:]
	}
	environment := append(append(os.Environ(), n.sim.Env()...), "SIMGPU_LABEL="+name)
	if claim == nil {
		environment = append(environment, "LD_LIBRARY_PATH="+filepath.Join(n.build, "sim/lib"))
	} else {
		run := append([]string{filepath.Join(n.build, "bin/tranche"), "run", "--memory", "4GiB", "--context-memory", "300MiB",
			"--run-dir", n.runDir(), "--state-dir", n.stateDir(), "--driver-root", n.sim.Root,
			"--shadow-dir", filepath.Join(n.build, "lib")}, claim...)
		command = append(append(run, "--"), command...)
	}
	l := &Load{name: name, cmd: exec.Command(command[0], command[1:]...)}
	l.cmd.Env = environment
	l.cmd.Stderr = &l.errors
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	pipe, err := l.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	l.stdout, l.pipe = bufio.NewReader(pipe), pipe
	if err := l.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the load %s: %w", name, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = l.kill(syscall.SIGKILL) })
	defer stop()
	if line, err := l.stdout.ReadString('\n'); err != nil || line != "ready\n" {
		return nil, errors.Join(fmt.Errorf("start the load %s: it says %q: %s", name, line, &l.errors), ctx.Err(), l.Kill())
	}
	return l, nil
}

// pids returns the load's processes without `tranche run`.
func (l *Load) pids() ([]int, error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", l.cmd.Process.Pid)) // any may have forked
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, children := range threads {
		text, _ := os.ReadFile(children) // the thread may have ended
		for _, field := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				return nil, err
			}
			pids = append(pids, pid)
		}
	}
	if len(pids) == 0 { // without a claim
		pids = []int{l.cmd.Process.Pid}
	}
	return pids, nil
}

// Signal sends a signal to the load's processes, and not to `tranche run`.
func (l *Load) Signal(s syscall.Signal) error {
	pids, err := l.pids()
	for _, pid := range pids {
		if err == nil {
			err = syscall.Kill(pid, s)
		}
	}
	if err != nil {
		return fmt.Errorf("signal the load %s: %w", l.name, err)
	}
	return nil
}

// Forget has the load's report begin now.
func (l *Load) Forget() error { return l.Signal(syscall.SIGUSR1) }

// kill sends a signal to all of the load's processes.
func (l *Load) kill(s syscall.Signal) error { return syscall.Kill(-l.cmd.Process.Pid, s) }

// Stop ends the load and returns its report.
func (l *Load) Stop() (r Report, err error) {
	if err := l.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return r, err
	}
	text, err := io.ReadAll(l.stdout)
	if err := errors.Join(err, l.cmd.Wait()); err != nil {
		return r, fmt.Errorf("stop the load %s: %w: %s", l.name, err, &l.errors)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("the report of the load %s, %q: %w", l.name, text, err)
	}
	return r, nil
}

// Kill ends the load with SIGKILL, all processes of it.
func (l *Load) Kill() error {
	err := l.kill(syscall.SIGKILL)
	_ = l.pipe.Close()
	_ = l.cmd.Wait() // it was killed
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// lockedBuffer keeps what a load writes to its standard error.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
