package device

import (
	"slices"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/device/nvml"
)

// someMIG are configurations of an A100 with 40 GB; an error that is expected makes one impossible.
var someMIG = map[string]struct {
	profiles []string
	slice    string // where there are no profiles
	wrong    string
}{
	"as many as there are":    {profiles: slices.Repeat([]string{"1g.5gb"}, 7)},
	"in an order of its own":  {profiles: []string{"3g.20gb", "1g.5gb", "2g.10gb", "1g.5gb"}},
	"twice the memory":        {profiles: slices.Repeat([]string{"1g.10gb"}, 4)},
	"media engines":           {profiles: []string{"1g.5gb+me", "4g.20gb"}},
	"engines of a new driver": {profiles: []string{"1g.5gb-me", "1g.5gb+me.all"}},
	"the largest slice":       {slice: "39GiB"},

	"no such size":       {profiles: []string{"5g.25gb"}, wrong: `it has no profile "5g.25gb"; it has 1g.5gb, `},
	"of another GPU":     {profiles: []string{"3g.40gb"}, wrong: `it has no profile "3g.40gb"`},
	"one too many":       {profiles: slices.Repeat([]string{"1g.5gb"}, 8), wrong: "mig.profiles do not fit on the GPU together: name fewer"},
	"no memory left":     {profiles: []string{"3g.20gb", "3g.20gb", "1g.5gb"}, wrong: "mig.profiles do not fit on the GPU together: name fewer"},
	"two with engines":   {profiles: []string{"1g.5gb+me", "1g.5gb+me"}, wrong: "mig.profiles do not fit on the GPU together: name fewer"},
	"capitals":           {profiles: []string{"3G.20GB"}, wrong: `mig.profiles must be names of profiles, such as "3g.20gb", got "3G.20GB"`},
	"nothing":            {profiles: []string{""}, wrong: `mig.profiles must be names of profiles`},
	"too large a slice":  {slice: "41GiB", wrong: "slice_memory is 41GiB, but the largest MIG instance of the GPU has only "},
	"larger than it all": {slice: "1TiB", wrong: "slice_memory is 1024GiB, but the largest MIG instance"},
}

// What a GPU's model cannot be is an error at the first start already, when MIG is off and the driver lists no profiles;
// MIG stays off.
func TestSetConfig_ImpossibleMIGWhileItIsOff(t *testing.T) {
	for name, tc := range someMIG {
		t.Run(name, func(t *testing.T) {
			library := onServer(t, listingLate(dgxa100.New()))
			options := testOptions(t, map[string]any{"gpu": gpuBlocks(someMIGBlock(tc.slice, tc.profiles))})
			err := startedAgent(t, library, options)
			node, readErr := library.Read(t.Context())
			must.NoError(t, readErr)
			must.False(t, node.GPUs[0].MIG.Enabled)
			if tc.wrong == "" {
				must.NoError(t, err)
				return
			}
			must.ErrorContains(t, err, tc.wrong)
			must.ErrorContains(t, err, `gpu "index:0"`)
		})
	}
}

// listingLate has GPUs list profiles only while MIG is on, as drivers do; the mocks always do.
func listingLate(s *server.Server) *server.Server {
	for _, device := range s.Devices {
		gpu := device.(*server.Device)
		list := gpu.GetGpuInstanceProfileInfoFunc
		gpu.GetGpuInstanceProfileInfoFunc = func(profile int) (gonvml.GpuInstanceProfileInfo, gonvml.Return) {
			if on, _, _ := gpu.GetMigMode(); on != gonvml.DEVICE_MIG_ENABLE {
				return gonvml.GpuInstanceProfileInfo{}, gonvml.ERROR_NOT_SUPPORTED
			}
			return list(profile)
		}
	}
	return s
}

// startedAgent configures a plugin as often as an agent does that starts.
func startedAgent(t *testing.T, library nvml.Interface, options map[string]any) error {
	t.Helper()
	p := New(hclog.NewNullLogger(), "v0.0.1")
	p.newNVML = func(string) nvml.Interface { return library }
	if err := p.SetConfig(pluginConfig(t, options)); err != nil {
		return err
	}
	return p.SetConfig(pluginConfig(t, options))
}

func someMIGBlock(slice string, profiles []string) map[string]any {
	if slice == "" {
		return migBlock("index:0", profiles...)
	}
	return map[string]any{"gpu": "index:0", "mode": "mig", "slice_memory": slice}
}

// The profiles of an unknown model come from the driver only, when MIG is on. What was accepted then stays so: the GPU has an
// unhealthy device that says why, and the next start of the agent is none that fails.
func TestMIG_UnknownModel(t *testing.T) {
	for name, tc := range someMIG {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := dgxa100.New()
			for _, device := range s.Devices {
				device.(*server.Device).GetNameFunc = func() (string, gonvml.Return) { return "NVIDIA X999", gonvml.SUCCESS }
			}
			library := onServer(t, listingLate(s))
			options := testOptions(t, map[string]any{"gpu": gpuBlocks(someMIGBlock(tc.slice, tc.profiles)), "fingerprint_period": "1h"})
			if err := startedAgent(t, library, options); err != nil {
				must.ErrorContains(t, err, tc.wrong) // what is no name of any profile
				return
			}
			p := newPlugin(t, library, options)
			reasons := map[string]string{}
			for _, group := range next(t, fingerprint(t, p)).Devices {
				must.NoError(t, group.Validate())
				for _, d := range group.Devices {
					if !d.Healthy {
						reasons[group.Type+" "+group.Name] = d.HealthDesc
					}
				}
			}
			if tc.wrong != "" {
				must.MapLen(t, 1, reasons)
			}
			for group, reason := range reasons {
				must.StrContains(t, reason, tc.wrong)
				must.SliceContains(t, []string{"gpu NVIDIA X999 MIG", "slice NVIDIA X999 #0"}, group)
			}
			must.NoError(t, startedAgent(t, library, options))
		})
	}
}
