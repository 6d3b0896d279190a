package device

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/nvml"
)

// MIG that the plugin turned on, it turns off when the GPU is shared in another
// mode; what an operator turned on stays. Which it was, a file for each GPU
// says. It survives a restart of the machine, as MIG does on many GPUs.

// migMark is the file that says that the plugin turned MIG on.
func (n *node) migMark(uuid string) string { return filepath.Join(n.stateDir, "mig", uuid) }

// turnedOnMIG tells whether the plugin turned MIG on, in this life or an earlier
// one, and not off again.
func (n *node) turnedOnMIG(uuid string) bool {
	_, err := os.Stat(n.migMark(uuid))
	return err == nil
}

// markMIG notes that the plugin turns MIG on. It comes before that: who dies in
// between has noted what was to be.
func (n *node) markMIG(uuid string) error {
	err := os.MkdirAll(filepath.Dir(n.migMark(uuid)), 0o700)
	if err == nil {
		err = os.WriteFile(n.migMark(uuid), nil, 0o600)
	}
	if err != nil {
		return fmt.Errorf("note that MIG is turned on for the GPU %s: %w", uuid, err)
	}
	return nil
}

func (n *node) unmarkMIG(uuid string) error {
	if err := os.Remove(n.migMark(uuid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("note that MIG is turned off for the GPU %s: %w", uuid, err)
	}
	return nil
}

// leavesMIG tells whether MIG is to be turned off.
func (n *node) leavesMIG(g *gpu) bool {
	return g.mode != claim.ModeMIG && g.MIG.Capable && n.turnedOnMIG(g.UUID)
}

// leaveMIG turns MIG off on a GPU that is shared in another mode now, when nobody
// uses it any more.
func (n *node) leaveMIG(ctx context.Context, g *gpu) (changed bool, err error) {
	if !g.MIG.Enabled {
		return false, n.unmarkMIG(g.UUID)
	}
	users, err := n.users(ctx, g.UUID)
	if err != nil {
		return false, err
	}
	_, onInstances, err := n.present(ctx, g)
	if err != nil {
		return false, err
	}
	users = slices.Compact(slices.Sorted(slices.Values(append(users, onInstances...))))
	if len(users) > 0 {
		return false, fmt.Errorf("it waits for %s to turn MIG off", strings.Join(users, ", "))
	}
	for _, instance := range g.MIG.Instances {
		if err := n.partitioner.DestroyInstance(ctx, g.UUID, instance.GPUInstance); err != nil {
			return changed, err
		}
		changed = true
	}
	if err := n.partitioner.SetMIG(ctx, g.UUID, false); err != nil {
		return changed, err
	}
	n.logger.Info("MIG turned off", "gpu", g.UUID, "mode", string(g.mode))
	return true, n.unmarkMIG(g.UUID)
}

// withoutOwnMIG is a GPU as it will be when MIG is off that the plugin turned on.
func (n *node) withoutOwnMIG(g nvml.GPU) nvml.GPU {
	if n.turnedOnMIG(g.UUID) {
		g.MIG.Enabled, g.MIG.Instances = false, nil
	}
	return g
}
