package mig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/share"
)

// MIG that the plugin has turned on, it turns off when the GPU leaves mode mig; what an operator has turned on stays on. A
// mark, a file for each GPU, tells the two apart. It survives a restart of the machine, as MIG does on many GPUs.

func (l *Layout) markFile(uuid string) string { return filepath.Join(l.StateDir, "mig", uuid) }

// marked reports whether a plugin process has turned MIG on, and none has turned it off again.
func (l *Layout) marked(uuid string) bool {
	_, err := os.Stat(l.markFile(uuid))
	return err == nil
}

// mark records that the plugin turns MIG on. It is called before that, so that a plugin that is killed in between leaves a
// mark.
func (l *Layout) mark(uuid string) error {
	err := os.MkdirAll(filepath.Dir(l.markFile(uuid)), 0o700)
	if err == nil {
		err = os.WriteFile(l.markFile(uuid), nil, 0o600)
	}
	if err != nil {
		return fmt.Errorf("record that MIG is turned on for the GPU %s: %w", uuid, err)
	}
	return nil
}

func (l *Layout) unmark(uuid string) error {
	if err := os.Remove(l.markFile(uuid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("record that MIG is turned off for the GPU %s: %w", uuid, err)
	}
	return nil
}

// disables reports whether MIG is to be turned off.
func (l *Layout) disables(g *share.GPU) bool {
	return g.Mode != claim.ModeMIG && g.MIG.Capable && l.marked(g.UUID)
}

// WithoutOwnMIG returns a GPU as it will be when MIG that the plugin has turned on is off.
func (l *Layout) WithoutOwnMIG(g nvml.GPU) nvml.GPU {
	if l.marked(g.UUID) {
		g.MIG.Enabled, g.MIG.Instances = false, nil
	}
	return g
}
