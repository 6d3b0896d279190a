package task

import (
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/internal/proc"
)

// Nomad keeps the state across upgrades: an older and a newer driver must find the same names in it.
func TestState_FieldNames(t *testing.T) {
	p := proc.ID{PID: 1, StartTime: 2, BootID: "boot"}
	h := New(nil, &drivers.TaskConfig{ID: "id"}, State{ContainerID: "c", PID: 1, Shim: ShimEndpoint{Address: "unix:///s", Version: 3},
		StopSignal: "TERM", StartedAt: time.Unix(1, 0), Init: p, ShimProcess: p, Cgroup: "/c"})
	handle, err := h.NomadHandle()
	must.NoError(t, err)
	var names map[string]any
	must.NoError(t, base.MsgPackDecode(handle.DriverState, &names))
	must.MapContainsKey(t, names, "StartedAt")
	process := map[string]any{"PID": int64(1), "StartTime": int64(2), "BootID": "boot"}
	delete(names, "StartedAt")
	must.Eq(t, map[string]any{"ContainerID": "c", "PID": int64(1), "Shim": map[string]any{"Address": "unix:///s", "Version": int64(3)},
		"StopSignal": "TERM", "Init": process, "ShimProcess": process, "Cgroup": "/c"}, names)
}
