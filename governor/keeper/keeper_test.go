package keeper

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
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
				if pid := recorded(tr.keeper.lockFile()); pid > 0 {
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
	pid := recorded(tr.keeper.lockFile())
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
	for recorded(filepath.Join(runDir, status.Dir, "lock")) != hung.Process.Pid {
		time.Sleep(10 * time.Millisecond)
	}
	tr := newTrial(t, "good", func(o *Options) { o.RunDir, o.HungAfter = runDir, 500*time.Millisecond })
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the hung governor was not ended")
	}
	tr.await("another", func(problem string) bool {
		return problem == "" && recorded(tr.keeper.lockFile()) != hung.Process.Pid
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

// The process ID in the lock's file may be another process's by now, and any user can have locked the file that an earlier version has
// made.
func TestKeeper_KillsNoOther(t *testing.T) {
	runDir := t.TempDir()
	lockFile := filepath.Join(runDir, status.Dir, status.LockFile)
	must.NoError(t, os.Mkdir(filepath.Dir(lockFile), 0o755))
	victim := exec.Command("sleep", "1000")
	must.NoError(t, victim.Start())
	ended := make(chan error, 1)
	go func() { ended <- victim.Wait() }()
	t.Cleanup(func() { _ = victim.Process.Kill() })
	must.NoError(t, os.WriteFile(lockFile, fmt.Appendln(nil, victim.Process.Pid), 0o644))
	readable, err := os.Open(lockFile) // as any user can
	must.NoError(t, err)
	defer readable.Close()
	must.NoError(t, filelock.TryExclusive(readable))
	tr := newTrial(t, "good", func(o *Options) { o.RunDir, o.HungAfter = runDir, 500*time.Millisecond })
	tr.await("the reason", func(problem string) bool {
		return strings.HasPrefix(problem, fmt.Sprintf("process %d (", os.Getpid())) &&
			strings.HasSuffix(problem, fmt.Sprintf(") has locked %s and is no governor: end it", lockFile))
	})
	select {
	case <-ended:
		t.Fatal("a process was killed that is no governor")
	default:
	}
	must.NoError(t, readable.Close())
	tr.runs()
}

// A program of the same name that only has the ID of the file, or has the file open without being a governor, is none.
func TestFind(t *testing.T) {
	runDir := t.TempDir()
	lockFile := filepath.Join(runDir, status.Dir, status.LockFile)
	self, err := os.Executable()
	must.NoError(t, err)
	find := func() *Governor {
		g, err := Find(runDir, self)
		must.NoError(t, err)
		return g
	}
	must.Nil(t, find(), must.Sprint("there is no file"))
	must.NoError(t, status.MakeDir(runDir))
	must.NoError(t, os.WriteFile(lockFile, fmt.Appendln(nil, os.Getpid()), 0o600))
	file, err := os.Open(lockFile)
	must.NoError(t, err)
	must.Nil(t, find(), must.Sprint("a test is no governor"))
	file.Close()

	must.NoError(t, os.Remove(lockFile))
	tr := newTrial(t, "good", func(o *Options) { o.RunDir = runDir })
	pid := tr.runs()
	g := find()
	must.NotNil(t, g)
	must.Eq(t, pid, g.PID)
	must.True(t, g.Kept)
	must.True(t, g.Runs(self))
	must.False(t, g.Runs("/bin/sleep"))
	found, err := Find(runDir, "/usr/bin/tranche")
	must.NoError(t, err)
	must.Nil(t, found, must.Sprint("another program"))
	must.NoError(t, os.Rename(lockFile, lockFile+".of-before"))
	must.NoError(t, os.WriteFile(lockFile, fmt.Appendln(nil, pid), 0o600))
	must.Nil(t, find(), must.Sprint("it has another file open"))
	must.NoError(t, os.Rename(lockFile+".of-before", lockFile))

	tr.stop()
	must.NoError(t, g.Stop(t.Context()))
	must.Nil(t, find())
	must.False(t, g.MayLive())
}

// A governor that runs a program of before an upgrade is replaced by the next keeper, unless a service manager has started it.
func TestKeeper_Upgrades(t *testing.T) {
	self, err := os.Executable()
	must.NoError(t, err)
	program := filepath.Join(t.TempDir(), "governor")
	content, err := os.ReadFile(self)
	must.NoError(t, err)
	replace := func(version string) {
		must.NoError(t, os.WriteFile(program+".new", append(content, version...), 0o700))
		must.NoError(t, os.Rename(program+".new", program))
	}
	replace("1")
	tr := newTrial(t, "good", func(o *Options) { o.Program = program })
	first := tr.runs()
	tr.stop()
	replace("1")
	tr.keeper = New(tr.keeper.Options)
	tr.run()
	must.Eq(t, first, tr.runs(), must.Sprint("it is the same version"))
	tr.stop()
	replace("2")
	tr.keeper = New(tr.keeper.Options)
	tr.run()
	tr.await("another governor", func(problem string) bool {
		pid := recorded(tr.keeper.lockFile())
		return problem == "" && pid > 0 && pid != first
	})
	second := tr.runs()
	tr.stop()
	must.NoError(t, os.Remove(filepath.Join(tr.keeper.dir(), status.LogFile))) // as if it wrote to another file
	replace("3")
	tr.keeper = New(tr.keeper.Options)
	tr.run()
	must.Eq(t, second, tr.runs())
}
