package spec

import (
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/ociruntime"
)

func TestTaskRuntime(t *testing.T) {
	plugin := &Config{Runtime: "runc", AllowRuntimes: []string{"no-such-runtime"}}
	r, err := (&TaskConfig{}).OCIRuntime(plugin)
	must.NoError(t, err)
	must.Eq(t, ociruntime.Runc, r.Shim)
	_, err = (&TaskConfig{Runtime: "no-such-runtime"}).OCIRuntime(plugin)
	must.ErrorContains(t, err, `option runtime = "no-such-runtime": it is not installed on this node`)
	_, err = (&TaskConfig{}).OCIRuntime(&Config{Runtime: "/no/such"})
	must.ErrorContains(t, err, `plugin option runtime = "/no/such": it is not installed on this node`)
	crun, err := (&TaskConfig{}).OCIRuntime(&Config{Runtime: "crun"})
	must.NoError(t, err)
	must.True(t, filepath.IsAbs(crun.Program))
}
