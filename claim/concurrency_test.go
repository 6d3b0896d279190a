package claim

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// startRole starts the test binary as another process that uses the same ledger.
func startRole(t *testing.T, l *Ledger, role string) (*exec.Cmd, *bufio.Reader, *bytes.Buffer) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "TRANCHE_TEST_ROLE="+role,
		"TRANCHE_TEST_STATE="+filepath.Dir(l.claims), "TRANCHE_TEST_RUN="+filepath.Dir(l.regions))
	stderr := new(bytes.Buffer)
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	t.Cleanup(func() { endProcess(cmd) })
	return cmd, bufio.NewReader(out), stderr
}

// checkWhole checks what holds in every state of the ledger: no problems, and no slice in two claims.
func checkWhole(t *testing.T, l *Ledger) {
	t.Helper()
	claims, problems, err := l.List(context.Background())
	must.NoError(t, err)
	must.SliceEmpty(t, problems)
	holder := map[string]string{}
	for _, c := range claims {
		for _, s := range c.Slices {
			must.MapNotContainsKey(t, holder, s, must.Sprintf("claims %s and %s", holder[s], c.ID))
			holder[s] = c.ID
		}
	}
}

func livingClaim(t *testing.T, l *Ledger) *Claim {
	t.Helper()
	c, _ := reserve(t, l, 30, 33)
	must.NoError(t, l.Bind(context.Background(), c.ID, container("living", startProcess(t))))
	return c
}

func checkLiving(t *testing.T, l *Ledger, living *Claim) {
	t.Helper()
	for _, c := range list(t, l) {
		if c.ID == living.ID {
			must.DirExists(t, l.regionPath(living.ID))
			return
		}
	}
	t.Fatalf("the claim of the living container is gone")
}

func TestManyGoroutines(t *testing.T) {
	l := newLedger(t)
	second := ledgerAt(t, filepath.Dir(l.claims), filepath.Dir(l.regions))
	living := livingClaim(t, l)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			if i%2 == 0 {
				reserveAtRandom(l, 10, io.Discard)
			} else {
				reserveAtRandom(second, 10, io.Discard)
			}
		})
	}
	wg.Go(func() {
		for range 30 {
			checkWhole(t, second)
			_, err := l.Sweep(context.Background())
			must.NoError(t, err)
		}
	})
	wg.Wait()
	checkWhole(t, l)
	checkLiving(t, l, living)
}

func TestManyProcesses(t *testing.T) {
	l := newLedger(t)
	living := livingClaim(t, l)
	var started []func()
	for range 6 {
		cmd, out, stderr := startRole(t, l, "reserver")
		started = append(started, func() {
			_, _ = io.Copy(io.Discard, out)
			must.NoError(t, cmd.Wait(), must.Sprint(stderr))
		})
	}
	for range 20 {
		checkWhole(t, l)
	}
	for _, wait := range started {
		wait()
	}
	checkWhole(t, l)
	checkLiving(t, l, living)
}

// Whenever a process is killed, the ledger is whole, nobody has to wait for the dead, and what it reported is there.
func TestKilledInTheMidst(t *testing.T) {
	l := newLedger(t)
	living := livingClaim(t, l)
	for round := range 40 {
		cmd, out, stderr := startRole(t, l, "endless reserver")
		_, err := out.ReadString('\n')
		must.NoError(t, err, must.Sprint(stderr))
		time.Sleep(time.Duration(round*137) * time.Microsecond) // another moment of its work each time
		endProcess(cmd)

		checkWhole(t, l) // it fails when the lock is not free
		checkLiving(t, l, living)
	}
	_, err := l.Sweep(context.Background())
	must.NoError(t, err)
	regions, err := os.ReadDir(l.regions)
	must.NoError(t, err)
	must.Len(t, len(list(t, l)), regions, must.Sprint("a region for each claim, and no others"))
}

func TestWaitingHasAnEnd(t *testing.T) {
	l := newLedger(t)
	reserve(t, l, 0, 0)
	holder, out, _ := startRole(t, l, "lock holder")
	_, err := out.ReadString('\n')
	must.NoError(t, err)
	must.NoError(t, holder.Process.Signal(syscall.SIGSTOP))

	goroutines := runtime.NumGoroutine()
	for range 20 {
		_, _, err = l.List(deadline(t, 20*time.Millisecond))
		must.ErrorIs(t, err, context.DeadlineExceeded)
		must.ErrorContains(t, err, lockName)
	}
	must.ErrorContains(t, err, "which process ")
	must.Less(t, goroutines+5, runtime.NumGoroutine())
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = l.Lookup(cancelled, newToken())
	must.ErrorIs(t, err, context.Canceled)

	endProcess(holder)
	must.Len(t, 1, list(t, l))
	checkWhole(t, ledgerAt(t, filepath.Dir(l.claims), filepath.Dir(l.regions))) // and nobody kept the lock
}

// Who has given up begins nothing that continues without them.
func TestGivenUpBeginsNothing(t *testing.T) {
	l := newLedger(t)
	_, err := l.WatchDir() // makes the directory
	must.NoError(t, err)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for range 200 {
		_, _, err = l.List(cancelled)
		must.ErrorIs(t, err, context.Canceled)
	}
	entries, err := os.ReadDir(l.claims)
	must.NoError(t, err)
	must.SliceEmpty(t, entries)
}

func TestHeadlessProcessIsAlive(t *testing.T) {
	l := newLedger(t)
	c, _ := reserve(t, l, 0, 0)
	cmd, out, stderr := startRole(t, l, "headless")
	must.NoError(t, l.Bind(context.Background(), c.ID, container("c1", cmd)))
	_, err := out.ReadString('\n')
	must.NoError(t, err, must.Sprint(stderr))
	for stateOf(t, cmd.Process.Pid) != "Z" { // the end of a thread raises no event outside
		runtime.Gosched()
	}
	must.True(t, Alive(*list(t, l)[0].Container))
	_, _, err = l.Reserve(context.Background(), request(0, 0))
	var held *HeldError
	must.True(t, errors.As(err, &held))
}
