package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
)

func TestInstallRuntime_OnlyInASandbox(t *testing.T) {
	t.Setenv("TRANCHE_SANDBOX", "")
	before, _ := os.ReadFile(runtimeConfigFile)
	n := &Node{Config: Config{Dir: t.TempDir()}}
	_, err := n.InstallRuntime()
	must.ErrorContains(t, err, "only configured for tests in a sandbox")
	after, _ := os.ReadFile(runtimeConfigFile)
	must.Eq(t, before, after)
	_, err = os.Stat(filepath.Join(n.Dir, "tranche-crun"))
	must.ErrorIs(t, err, os.ErrNotExist)
}
