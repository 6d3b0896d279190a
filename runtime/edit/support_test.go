package edit

import (
	"context"
	"errors"
	"testing"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime/gpuinfo"
	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

// testNode is a node in a temporary directory on which no CDI spec can be generated.
func testNode(t *testing.T) Node {
	t.Helper()
	l := runtimetest.NewLayout(t)
	return Node{
		DriverRoot: l.DriverRoot, ShadowDir: l.ShadowDir, HookPath: l.HookPath, StateDir: l.StateDir, RunDir: l.RunDir,
		CLIPath: "/usr/bin/tranche", CDISpecDirs: l.CDISpecDirs(), DriverCapabilities: AllCapabilities,
		RefreshNodeInfo: func(context.Context, gpuinfo.Place) error { return errNoNVML },
		Logger:          quiet{},
	}
}

var errNoNVML = errors.New("there is no NVML")

type quiet struct{}

func (quiet) Debug(string, ...any) {}
func (quiet) Info(string, ...any)  {}
func (quiet) Warn(string, ...any)  {}

func claimOf(id, uuid string, index int) Claim {
	return Claim{
		Claim:     &claim.Claim{ID: id, GPU: claim.GPU{UUID: uuid, Index: index}},
		RegionDir: "/run/tranche/claims/" + id,
	}
}
