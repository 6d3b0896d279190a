package driver

import (
	"context"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers/proto"
	"github.com/shoenig/test/must"
)

func TestCompleteCapabilities(t *testing.T) {
	d := New(t.Context(), testLogger())
	d.config.DisableLogCollection = true
	answer := func(response any) any {
		got, err := d.completeCapabilities(t.Context(), nil, nil, func(context.Context, any) (any, error) { return response, nil })
		must.NoError(t, err)
		return got
	}
	got, ok := answer(&proto.CapabilitiesResponse{Capabilities: &proto.DriverCapabilities{Exec: true}}).(*proto.CapabilitiesResponse)
	must.True(t, ok)
	must.True(t, got.Capabilities.DisableLogCollection)
	must.True(t, got.Capabilities.Exec)
	must.Eq(t, any(&proto.StartTaskResponse{}), answer(&proto.StartTaskResponse{}))
}
