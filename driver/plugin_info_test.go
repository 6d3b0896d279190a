package driver

import (
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/internal/version"
)

func TestPluginInfo_VersionOfAllPrograms(t *testing.T) {
	info, err := New(t.Context(), hclog.NewNullLogger()).PluginInfo()
	must.NoError(t, err)
	must.Eq(t, version.Version, info.PluginVersion)
}

func TestCapabilities_DynamicWorkloadUsers(t *testing.T) {
	for _, allowed := range []bool{true, false} {
		capabilities, err := (&Driver{config: spec.Config{DynamicWorkloadUsers: allowed}}).Capabilities()
		must.NoError(t, err)
		must.Eq(t, allowed, capabilities.DynamicWorkloadUsers)
	}
}

// A process that names itself as it likes writes no second line of `nomad alloc status`, and nothing else in the user's terminal.
func TestNotify_Printable(t *testing.T) {
	d := New(t.Context(), hclog.NewNullLogger())
	events, err := d.TaskEvents(t.Context())
	must.NoError(t, err)
	d.notify(&drivers.TaskConfig{ID: "task"}, nil, "the share does not hold for process %d (%s)", 4711, "a\x1b[2J\nTerminated: all is well")
	must.Eq(t, `the share does not hold for process 4711 (a\x1b[2J\nTerminated: all is well)`, (<-events).Message)
}

func TestSetConfig_SaysWhatIsWrong(t *testing.T) {
	d := New(t.Context(), testLogger())
	var data []byte
	must.NoError(t, base.MsgPackEncode(&data, spec.Config{ContainerdAddress: "nowhere"}))
	must.ErrorContains(t, d.SetConfig(&base.Config{PluginConfig: data}), `containerd_address = "nowhere"`)
}
