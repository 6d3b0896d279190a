package nvml

import (
	"testing"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/shoenig/test/must"
)

// A library that lacks every function that isn't required: calling one would end
// the process, and the mock panics at it.
func TestLibrary_oldDriver(t *testing.T) {
	lib := library(device())
	now := time.Unix(1000, 0)
	l := loaded(lib, &now)
	node, err := l.Read(t.Context())
	must.NoError(t, err)
	must.Eq(t, Traits{}, node.GPUs[0].Traits)
	must.Eq(t, 0, node.GPUs[0].SMs())
	telemetry, err := l.Telemetry(t.Context(), uuid)
	must.NoError(t, err)
	must.Eq(t, &Telemetry{}, telemetry)
	health, err := l.Health(t.Context(), uuid)
	must.NoError(t, err)
	must.Eq(t, &Health{}, health)
	must.ErrorIs(t, l.SetComputeMode(t.Context(), uuid, ComputeDefault), gonvml.ERROR_FUNCTION_NOT_FOUND)
	must.ErrorIs(t, l.subscribe(t.Context()), errNoEvents)
}

// What is asked of a driver that has the function, and of a GPU that doesn't
// tell, is left empty; what goes wrong is told.
func TestAskAll(t *testing.T) {
	now := time.Unix(1000, 0)
	cases := []struct {
		ret   gonvml.Return
		fails bool
	}{
		{gonvml.ERROR_NOT_SUPPORTED, false}, {gonvml.ERROR_NO_DATA, false}, {gonvml.ERROR_NO_PERMISSION, false},
		{gonvml.ERROR_FUNCTION_NOT_FOUND, false}, {gonvml.ERROR_CORRUPTED_INFOROM, false},
		{gonvml.ERROR_UNKNOWN, true}, {gonvml.ERROR_GPU_IS_LOST, true}, {gonvml.ERROR_RESET_REQUIRED, true},
		{gonvml.ERROR_UNINITIALIZED, true},
	}
	for _, tc := range cases {
		t.Run(tc.ret.String(), func(t *testing.T) {
			d := device()
			d.GetPowerUsageFunc = func() (uint32, gonvml.Return) { return 7, tc.ret }
			lib := library(d)
			lib.ExtensionsFunc = func() gonvml.ExtendedInterface {
				return &mock.ExtendedInterface{LookupSymbolFunc: hasOnly("nvmlDeviceGetPowerUsage")}
			}
			l := loaded(lib, &now)
			telemetry, err := l.Telemetry(t.Context(), uuid)
			node, _ := l.Read(t.Context())
			if !tc.fails {
				must.NoError(t, err)
				must.Nil(t, telemetry.PowerMilliwatts)
				must.Len(t, 1, node.GPUs)
				return
			}
			must.ErrorIs(t, err, tc.ret)
			must.ErrorContains(t, err, "NVML could not read the power usage of the GPU "+uuid)
			must.Len(t, 1, node.Failed)
		})
	}
}

// A field that the driver doesn't know is an invalid argument to some.
func TestAskRecovery(t *testing.T) {
	for ret, want := range map[gonvml.Return]gonvml.Return{
		gonvml.SUCCESS:                gonvml.SUCCESS,
		gonvml.ERROR_INVALID_ARGUMENT: gonvml.ERROR_NOT_SUPPORTED,
		gonvml.ERROR_NOT_SUPPORTED:    gonvml.ERROR_NOT_SUPPORTED,
		gonvml.ERROR_GPU_IS_LOST:      gonvml.ERROR_GPU_IS_LOST,
	} {
		var health Health
		got := queryRecovery(&mock.Device{GetFieldValuesFunc: func(fields []gonvml.FieldValue) gonvml.Return {
			must.Eq(t, 230, fields[0].FieldId)
			fields[0].NvmlReturn = uint32(ret)
			fields[0].Value[0] = 4
			return gonvml.SUCCESS
		}}, &health)
		must.Eq(t, want, got)
		must.Eq(t, ret == gonvml.SUCCESS, health.Recovery != nil)
		if health.Recovery != nil {
			must.Eq(t, RecoveryDrainAndReset, *health.Recovery)
		}
	}
	must.Eq(t, "recovery action 12", RecoveryAction(12).String())
}

func TestVerdictOn(t *testing.T) {
	cases := []struct {
		xid       uint64
		kind      XidKind
		unhealthy bool
	}{
		{13, XidApplication, false}, {31, XidApplication, false}, {43, XidApplication, false}, {45, XidNotice, false},
		{48, XidReset, true}, {63, XidNotice, false}, {64, XidReset, true}, {74, XidMachine, true}, {79, XidMachine, true},
		{94, XidApplication, false}, {95, XidReset, true}, {109, XidReset, true}, {119, XidReset, true},
		{147, XidMachine, true}, {154, XidRecovery, false}, {100, XidApplication, false}, {107, XidNotice, false},
		{0, XidUnknown, false}, {9999, XidUnknown, false},
	}
	for _, tc := range cases {
		verdict := VerdictOn(tc.xid)
		must.Eq(t, tc.kind, verdict.Kind, must.Sprintf("Xid %d", tc.xid))
		must.Eq(t, tc.unhealthy, verdict.Unhealthy(), must.Sprintf("Xid %d", tc.xid))
		must.NotEq(t, "", verdict.Meaning)
	}
	// One that has words of its own in the midst of others.
	must.Eq(t, "a program's graphics work was invalid", VerdictOn(69).Meaning)
	must.Eq(t, VerdictOn(66), VerdictOn(70))
}
