package driver

import (
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/internal/version"
)

func TestPluginInfo_VersionOfAllPrograms(t *testing.T) {
	info, err := New(t.Context(), hclog.NewNullLogger()).PluginInfo()
	must.NoError(t, err)
	must.Eq(t, version.Version, info.PluginVersion)
}
