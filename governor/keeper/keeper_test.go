package keeper

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/governor/status"
	"github.com/tranche-gpu/tranche/internal/filelock"
)

// standIn has this test program stand in for `tranche governor`: "good", "hung" for one that publishes once, or "bad".
const standIn = "TRANCHE_TEST_GOVERNOR"

func TestMain(m *testing.M) {
	if how := os.Getenv(standIn); how != "" && len(os.Args) > 1 && os.Args[1] == "governor" {
		governor(os.Args[3], how)
	}
	os.Exit(m.Run())
}

// governor does what a keeper expects of one. It ends with the test program.
func governor(runDir, how string) {
	if how == "bad" {
		fmt.Fprintln(os.Stderr, "open the ledger: permission denied")
		os.Exit(3)
	}
	file, err := os.OpenFile(filepath.Join(runDir, status.Dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = filelock.TryExclusive(file)
	}
	if err == nil {
		err = file.Truncate(0) // an earlier process ID may be longer
	}
	if err == nil {
		_, err = file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for parent := os.Getppid(); os.Getppid() == parent; {
		if err := status.Write(runDir, status.Status{Written: time.Now()}); err != nil {
			os.Exit(1)
		}
		for how == "hung" {
			time.Sleep(time.Hour)
		}
		time.Sleep(20 * time.Millisecond)
	}
	os.Exit(0)
}

// trial is a keeper whose governor is this program.
type trial struct {
	t      *testing.T
	keeper *Keeper
	// problems receives each problem that the keeper has had, since the next one may come before a test looks.
	problems chan string
	problem  string // the last that was received
	stop     func()
}

func newTrial(t *testing.T, how string, change func(*Options)) *trial {
	t.Helper()
	t.Setenv(standIn, how)
	self, err := os.Executable()
	must.NoError(t, err)
	tr := &trial{t: t, problems: make(chan string, 100)}
	o := Options{
		Program: self, RunDir: t.TempDir(), StateDir: "/s", DriverRoot: "/", Logger: hclog.NewNullLogger(),
		Changed: func() { tr.problems <- tr.keeper.Problem() },
	}
	if change != nil {
		change(&o)
	}
	tr.keeper = New(o)
	t.Cleanup(func() {
		for quiet := 0; quiet < 5; quiet++ { // one that was just started has no lock yet
			for running := true; running; running, _ = held(tr.keeper.lockFile()) {
				if pid := holder(tr.keeper.lockFile()); pid > 0 {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
				time.Sleep(20 * time.Millisecond)
			}
		}
	})
	tr.run()
	return tr
}

// run runs the keeper until stop is called or the test ends.
func (tr *trial) run() {
	tr.problem = Starting
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { tr.keeper.Run(ctx) })
	tr.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	tr.t.Cleanup(tr.stop)
}

// await waits until the keeper's problem is so, or was since the last await.
func (tr *trial) await(what string, so func(problem string) bool) {
	tr.t.Helper()
	deadline := time.After(time.Minute)
	for !so(tr.problem) {
		select {
		case tr.problem = <-tr.problems:
		case <-deadline:
			tr.t.Fatalf("waiting for %s, the problem is %q", what, tr.problem)
		}
	}
}

func (tr *trial) runs() int {
	tr.t.Helper()
	tr.await("a governor", func(problem string) bool { return problem == "" })
	pid := holder(tr.keeper.lockFile())
	must.Positive(tr.t, pid)
	return pid
}

func TestKeeper_StartsAnotherWhenOneIsKilled(t *testing.T) {
	tr := newTrial(t, "good", nil)
	must.Eq(t, Starting, New(tr.keeper.Options).Problem())
	first := tr.runs()
	must.NoError(t, syscall.Kill(first, syscall.SIGKILL))
	tr.await("its end", func(problem string) bool { return problem != "" })
	must.NotEq(t, first, tr.runs())
}

// The governor continues without its keeper, and the next keeper takes it over.
func TestKeeper_TakesOver(t *testing.T) {
	tr := newTrial(t, "good", nil)
	first := tr.runs()
	tr.stop()
	must.NoError(t, syscall.Kill(first, 0))
	tr.keeper = New(tr.keeper.Options)
	tr.run()
	must.Eq(t, first, tr.runs())
	must.NoError(t, syscall.Kill(first, syscall.SIGKILL))
	tr.await("its end", func(problem string) bool { return problem == "the governor has ended" })
	must.NotEq(t, first, tr.runs())
}

func TestKeeper_ReplacesOneThatHangs(t *testing.T) {
	runDir := t.TempDir()
	must.NoError(t, os.Mkdir(filepath.Join(runDir, status.Dir), 0o755))
	self, err := os.Executable()
	must.NoError(t, err)
	hung := exec.Command(self, "governor", "--run-dir", runDir)
	hung.Env = append(os.Environ(), standIn+"=hung")
	must.NoError(t, hung.Start())
	ended := make(chan error, 1)
	go func() { ended <- hung.Wait() }()
	for holder(filepath.Join(runDir, status.Dir, "lock")) != hung.Process.Pid {
		time.Sleep(10 * time.Millisecond)
	}
	tr := newTrial(t, "good", func(o *Options) { o.RunDir, o.HungAfter = runDir, 500*time.Millisecond })
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the hung governor was not ended")
	}
	tr.await("another", func(problem string) bool {
		return problem == "" && holder(tr.keeper.lockFile()) != hung.Process.Pid
	})
}

func TestKeeper_SaysWhyNoneRuns(t *testing.T) {
	tr := newTrial(t, "bad", nil)
	tr.await("the reason", func(problem string) bool {
		return problem == "the governor has ended (exit status 3): open the ledger: permission denied"
	})
	tr.stop()
	tr = newTrial(t, "good", func(o *Options) { o.Program = "/nonexistent/tranche" })
	tr.await("the reason", func(problem string) bool {
		return problem == "start /nonexistent/tranche: fork/exec /nonexistent/tranche: no such file or directory; "+
			"it must be beside the device plugin or in /usr/bin"
	})
}
