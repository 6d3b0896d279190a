package driver

import (
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
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

func TestSetConfig_SaysWhatIsWrong(t *testing.T) {
	d := New(t.Context(), testLogger())
	var data []byte
	must.NoError(t, base.MsgPackEncode(&data, spec.Config{ContainerdAddress: "nowhere"}))
	must.ErrorContains(t, d.SetConfig(&base.Config{PluginConfig: data}), `containerd_address = "nowhere"`)
}
