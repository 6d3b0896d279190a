package enforcement

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/tranche-gpu/tranche/claim"
)

// runPrefix begins the names of the cgroups that Enter makes.
const runPrefix = "tranche-run-"

// Enter moves this process into a cgroup of its own, below the present one, and has the driver hold it and its children to a claim's
// limit. The returned function moves this process back. It removes the cgroup, unless children of it still run: the next Enter
// there does that.
func Enter(ctx context.Context, d Driver, c *claim.Claim) (leave func() error, err error) {
	h, err := mounted()
	if err != nil {
		return nil, err
	}
	parent, err := h.of(os.Getpid())
	if err != nil {
		return nil, err
	}
	removeEnded(parent)
	dir := filepath.Join(parent, runPrefix+c.ID)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make a cgroup for the command: %w", err)
	}
	leave = func() error {
		err := join(parent)
		removeEnded(parent)
		return err
	}
	if err = join(dir); err == nil {
		err = Start(ctx, d, os.Getpid(), []*claim.Claim{c})
	}
	if err != nil {
		return nil, errors.Join(err, leave())
	}
	return leave, nil
}

// join moves this process into a cgroup.
func join(dir string) error {
	err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
	if err != nil {
		return fmt.Errorf("move this process to the cgroup %s: %w", dir, err)
	}
	return nil
}

// removeEnded removes the cgroups of commands that have ended.
func removeEnded(parent string) {
	dirs, _ := filepath.Glob(filepath.Join(parent, runPrefix+"*")) // the pattern is a good one
	for _, dir := range dirs {
		_ = os.Remove(dir) // it fails where processes are left
	}
}
