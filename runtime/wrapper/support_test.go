package wrapper

import (
	"testing"

	"github.com/tranche-gpu/tranche/runtime"
	"github.com/tranche-gpu/tranche/runtime/edit"
	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

// NodeConfig is the configuration of a node in a temporary directory.
func NodeConfig(t *testing.T) runtime.Config {
	t.Helper()
	l := runtimetest.NewLayout(t)
	return runtime.Config{Node: edit.Node{
		DriverRoot: l.DriverRoot, ShadowDir: l.ShadowDir, HookPath: l.HookPath, StateDir: l.StateDir, RunDir: l.RunDir,
	}}.WithDefaults()
}
