package removal

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/client"
)

// creationPoll is the time between two checks whether a creation has ended.
const creationPoll = 50 * time.Millisecond

// EndCreation ends the creation of a container's task if the plugin process that requested it died meanwhile. containerd does
// not know such a task, so Remove would leave its process, which may have a claim, and its bundle, which the next container
// with this ID needs. It blocks until containerd knows the task, or nothing of it is left.
func (r *Remover) EndCreation(ctx context.Context, id string) error {
	container, err := r.Client.LoadContainer(ctx, id)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	bundles := map[string]bool{}
	for {
		if _, err := container.Task(ctx, nil); !errdefs.IsNotFound(err) {
			return err
		}
		shims, err := r.shimsOf(id)
		if err != nil {
			return err
		}
		addBundles(bundles, shims)
		// containerd gives a shim 5 seconds to end, removes the bundle, and may leave the shim.
		if !anyExists(bundles) {
			if len(shims) == 0 {
				return nil
			}
			r.killShims(shims, "that containerd does not know")
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the end of its creation: %w", ctx.Err())
		case <-time.After(creationPoll):
		}
	}
}

// addBundles adds the bundles of shims: the working directories of them and of the programs that start them and clean up.
func addBundles(bundles map[string]bool, shims []client.Shim) {
	for _, shim := range shims {
		dir, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", shim.Process.PID))
		if err == nil && !isBeingRemoved(dir) {
			bundles[dir] = true
		}
	}
}

func (r *Remover) shimsOf(id string) (shims []client.Shim, err error) {
	all, err := r.Client.Shims()
	if err != nil {
		return nil, fmt.Errorf("look for its shim: %w", err)
	}
	for _, shim := range all {
		if shim.ContainerID == id {
			shims = append(shims, shim)
		}
	}
	return shims, nil
}

func (r *Remover) killShims(shims []client.Shim, which string) {
	for _, shim := range shims {
		r.Logger.Info("killing a shim "+which, "container", shim.ContainerID, "pid", shim.Process.PID)
		if err := shim.Process.Signal(unix.SIGKILL); err != nil {
			r.Logger.Warn("a shim could not be killed", "container", shim.ContainerID, "pid", shim.Process.PID, "error", err)
		}
	}
}

// isBeingRemoved reports whether containerd has given a bundle its hidden name, before it removes what is in it. What it cannot
// remove stays under that name.
func isBeingRemoved(bundle string) bool { return strings.HasPrefix(filepath.Base(bundle), ".") }

func anyExists(paths map[string]bool) bool {
	for path := range paths {
		if _, err := os.Stat(path); err == nil {
			return true
		}
	}
	return false
}
