package device

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
	"github.com/tranche-gpu/tranche/device/share"
)

func TestSetConfig_defaults(t *testing.T) {
	p := New(hclog.NewNullLogger(), "v0.0.1")
	p.newNVML = func(string) nvml.Interface { return nvmltest.New() }
	must.NoError(t, p.SetConfig(pluginConfig(t, nil)))
	must.Eq(t, &settings{
		enabled:           true,
		sharing:           sharing{others: share.Policy{Mode: claim.ModeSlice, SliceBytes: 1 << 30, Enforcement: claim.EnforcementAuto}},
		ignored:           map[string]bool{},
		fingerprintPeriod: time.Minute,
		driverRoot:        "/",
		stateDir:          "/var/lib/tranche",
		runDir:            "/run/tranche",
		uncounted:         uncountedCharged,
		bypass:            layout.BypassObserved,
	}, p.node.Load().settings, must.Cmp(cmp.AllowUnexported(settings{}, sharing{}, share.Policy{})))
}

func TestSetConfig(t *testing.T) {
	uuid := nvmltest.H200(1).UUID
	p := New(hclog.NewNullLogger(), "v0.0.1")
	var root string
	p.newNVML = func(driverRoot string) nvml.Interface { root = driverRoot; return nvmltest.New() }
	must.NoError(t, p.SetConfig(pluginConfig(t, map[string]any{
		"slice_memory": "512 MiB", "ignored_gpu_ids": []string{uuid}, "fingerprint_period": "5s",
		"driver_root": "/run/nvidia/driver/", "state_dir": "/state", "run_dir": "/run/x", "context_memory": "300MiB", "uncounted_memory": "end",
		"enforcement": "driver",
	})))
	must.Eq(t, "/run/nvidia/driver", root)
	must.Eq(t, &settings{
		enabled: true, sharing: sharing{others: share.Policy{Mode: claim.ModeSlice, SliceBytes: 512 * mebi, Enforcement: claim.EnforcementDriver}}, ignored: map[string]bool{uuid: true}, fingerprintPeriod: 5 * time.Second,
		driverRoot: "/run/nvidia/driver", stateDir: "/state", runDir: "/run/x", uncounted: uncountedEnds, bypass: layout.BypassObserved, contextBytes: 300 * mebi,
	}, p.node.Load().settings, must.Cmp(cmp.AllowUnexported(settings{}, sharing{}, share.Policy{})))
}

func TestSetConfig_badInput(t *testing.T) {
	const whole = `it must be a whole number with the unit KiB, MiB, GiB or TiB (powers of 1024) or KB, MB, GB or TB ` +
		`(powers of 1000), such as "1GiB" or "512MiB"`
	cases := []struct {
		option string
		value  any
		want   string
	}{
		{"slice_memory", "", `slice_memory: "" is not an amount of memory: ` + whole},
		{"slice_memory", "lots", `slice_memory: "lots" is not an amount of memory: ` + whole},
		{"slice_memory", "8G", `slice_memory: "8G" is not an amount of memory: ` + whole},
		{"slice_memory", "1GB", "slice_memory: 1GB is not a whole number of MiB, and nothing is rounded: " +
			"953MiB and 954MiB are next to it"},
		{"slice_memory", "1.5GiB", `slice_memory: "1.5GiB" is not an amount of memory: ` + whole},
		{"slice_memory", "-1GiB", `slice_memory: "-1GiB" is not an amount of memory: ` + whole},
		{"slice_memory", "0GiB", "slice_memory: 0GiB is not a multiple of 2MiB, the unit in which a GPU hands out memory"},
		{"slice_memory", "99999999TiB", "slice_memory: 99999999TiB is more than a claim can account for, which is 16384GiB"},
		{"slice_memory", "1025MiB", "slice_memory: 1025MiB is not a multiple of 2MiB, the unit in which a GPU hands out memory"},
		{"slice_memory", "32MiB", `slice_memory must be at least 64MiB, got "32MiB"`},
		{"context_memory", "some", `context_memory: "some" is not an amount of memory: ` + whole + `, or "auto" to measure it`},
		{"uncounted_memory", "kill", `uncounted_memory must be "charge", "observe" or "end", got "kill"`},
		{"fingerprint_period", "often", `fingerprint_period must be a duration of at least 100ms, such as "1m", got "often"`},
		{"fingerprint_period", "0s", `fingerprint_period must be a duration of at least 100ms, such as "1m", got "0s"`},
		{"ignored_gpu_ids", []string{"0"}, `ignored_gpu_ids must be UUIDs of GPUs, such as ` +
			`"GPU-6f2f5f4c-0b6e-4d7b-9d0c-0a1b2c3d4e5f", got "0"; nvidia-smi -L lists them`},
		{"driver_root", "driver", `driver_root must be an absolute path, got "driver"`},
		{"state_dir", "", `state_dir must be an absolute path, got ""`},
		{"run_dir", "./run", `run_dir must be an absolute path, got "./run"`},
		{"max_slices", -1, "max_slices must not be negative, got -1; 0 is for as many as a GPU has"},
		{"mode", "slices", `mode must be one of "slice", "exclusive", "timeslice", "mps", "mig", got "slices"`},
		{"mode", "timeslice", `replicas must be set in mode "timeslice", such as replicas = 10`},
		{"replicas", 2.5, "replicas must be a whole number, got 2.5"},
		{"max_slices", 0.5, "max_slices must be a whole number, got 0.5"},
		{"max_slices", 1e30, "max_slices must be a whole number, got 1e+30"},
		{"compute", "turns", `compute must be "driver" or "shares", got "turns"`},
		{"compute_bypass", "kill", `compute_bypass must be "observe", "charge" or "end", got "kill"`},
		{"compute_bypass", "", `compute_bypass must be "observe", "charge" or "end", got ""`},
		{"compute_bypass", "end", `compute_bypass = "end" is for GPUs with compute = "shares", and there are none; set that, or remove it`},
		{"replicas", 2, `replicas is for mode "timeslice", and the mode is "slice"`},
	}
	for _, tc := range cases {
		t.Run(tc.want, func(t *testing.T) {
			p := New(hclog.NewNullLogger(), "v0.0.1")
			must.EqError(t, p.SetConfig(pluginConfig(t, map[string]any{tc.option: tc.value})), tc.want)
			must.Nil(t, p.node.Load())
		})
	}
}

// What a context takes at most is what the GPU has, or no program ever starts. It is said at the agent's start, and where the
// GPU comes later, by its slices.
func TestSetConfig_contextMemory(t *testing.T) {
	g := nvmltest.H200(0)
	for text, wrong := range map[string]bool{"140GiB": false, "143770MiB": false, "143772MiB": true, "1TiB": true} {
		options := testOptions(t, map[string]any{"context_memory": text})
		err := startedAgent(t, nvmltest.New(g), options)
		p := newPlugin(t, nvmltest.New(g), options)
		reasons := unhealthy(next(t, fingerprint(t, p)).Devices[0])
		if !wrong {
			must.NoError(t, err)
			must.MapEmpty(t, reasons)
			continue
		}
		must.ErrorContains(t, err, "mode: the GPU 0, NVIDIA H200 ("+g.UUID+`), cannot be in mode "slice": context_memory is `)
		must.ErrorContains(t, err, "but the GPU has only 143771MiB for processes")
		must.MapLen(t, 140, reasons)
		for _, reason := range reasons {
			must.StrContains(t, err.Error(), reason)
		}
		options["mode"] = "exclusive"
		must.NoError(t, startedAgent(t, nvmltest.New(g), options), must.Sprint("there it means nothing"))
		options["mode"], options["ignored_gpu_ids"] = "slice", []string{g.UUID}
		must.NoError(t, startedAgent(t, nvmltest.New(g), options), must.Sprint("nor for a GPU that is not offered"))
	}
}
