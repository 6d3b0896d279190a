package gpuinfo

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"
)

// However many ask at once, the driver is asked once.
func TestPlace_AsksOnceForMany(t *testing.T) {
	place := testPlace(t)
	var asked atomic.Int32
	started := make(chan struct{})
	refresh := func(_ context.Context, p Place) error {
		asked.Add(1)
		<-started // until all others are on their way
		return errors.Join(p.KeepSpec(&cdispecs.Spec{}), p.KeepGPUs([]GPU{{UUID: gpu0}}))
	}
	const many = 20
	var running, done sync.WaitGroup
	running.Add(many)
	errs := make([]error, many)
	for i := range many {
		done.Go(func() {
			running.Done()
			_, errs[i] = place.GPUs(t.Context(), refresh)
		})
	}
	running.Wait()
	close(started)
	done.Wait()
	must.NoError(t, errors.Join(errs...))
	must.Eq(t, 1, asked.Load())
}

// One that can't ask does not keep the next one from it.
func TestPlace_AsksAgainAfterAnError(t *testing.T) {
	place, d, broken := testPlace(t), &driver{gpus: []string{gpu0}}, errors.New("ERROR_TIMEOUT")
	_, err := place.GPUs(t.Context(), func(context.Context, Place) error { return broken })
	must.ErrorIs(t, err, broken)
	_, err = place.GPUs(t.Context(), d.refresh)
	must.NoError(t, err)
	must.Eq(t, 1, d.asked)
}

// lockHolderEnv has this test binary hold the lock of a place.
const lockHolderEnv = "GPUINFO_TEST_LOCK_HOLDER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(lockHolderEnv); dir != "" {
		if _, err := (Place{RunDir: dir}).lock(context.Background()); err != nil {
			os.Exit(1)
		}
		_, _ = os.Stdout.WriteString("held\n")
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Another process that asks and gets no answer is waited for until the time is up, and no longer than it lives.
func TestPlace_LockOfAnotherProcess(t *testing.T) {
	place, d := testPlace(t), &driver{gpus: []string{gpu0}}
	holder := exec.Command(os.Args[0])
	holder.Env = append(os.Environ(), lockHolderEnv+"="+place.RunDir)
	_, err := holder.StdinPipe() // it ends with us
	must.NoError(t, err)
	stdout, err := holder.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, holder.Start())
	t.Cleanup(func() { _ = holder.Process.Kill(); _ = holder.Wait() })
	said, err := bufio.NewReader(stdout).ReadString('\n')
	must.NoError(t, err)
	must.Eq(t, "held\n", said)

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = place.GPUs(ctx, d.refresh)
	must.ErrorIs(t, err, context.DeadlineExceeded)
	must.ErrorContains(t, err, filepath.Join(place.RunDir, "node.lock"))
	must.Zero(t, d.asked)

	must.NoError(t, holder.Process.Kill())
	_, err = place.GPUs(t.Context(), d.refresh)
	must.NoError(t, err)
	must.Eq(t, 1, d.asked)
}

// A GPU that did not answer is asked again after a while, and missed with a reason.
func TestPlace_Unanswered(t *testing.T) {
	place, d := testPlace(t), &driver{gpus: []string{gpu0}}
	must.NoError(t, place.KeepUnanswered([]Unanswered{{Index: 1, Error: "ERROR_GPU_IS_LOST"}}))
	_, err := place.Spec(t.Context(), d.refresh, []string{gpu1}, nil)
	must.ErrorContains(t, err, gpu1)
	must.ErrorContains(t, err, "#1 (ERROR_GPU_IS_LOST)")
	must.Eq(t, 1, d.asked)
	gpus, err := place.GPUs(t.Context(), d.refresh)
	must.NoError(t, err)
	must.Len(t, 1, gpus)
	must.Eq(t, 1, d.asked)

	dir, err := place.dir()
	must.NoError(t, err)
	past := time.Now().Add(-2 * retryInterval)
	must.NoError(t, os.Chtimes(filepath.Join(dir, unansweredFile), past, past))
	back := func(ctx context.Context, p Place) error {
		d.gpus = []string{gpu0, gpu1}
		return errors.Join(d.refresh(ctx, p), p.KeepUnanswered(nil))
	}
	gpus, err = place.GPUs(t.Context(), back)
	must.NoError(t, err)
	must.Len(t, 2, gpus)
	must.Eq(t, 2, d.asked)
}
