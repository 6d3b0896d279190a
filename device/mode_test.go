package device

import (
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"strings"
	"testing"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
)

// gpuBlocks are what HCL makes of gpu blocks.
func gpuBlocks(blocks ...map[string]any) []any {
	var all []any
	for _, block := range blocks {
		label := block["gpu"].(string)
		delete(block, "gpu")
		all = append(all, map[string]any{label: []any{block}})
	}
	return all
}

// lines are the groups as a person would note them: type, name, how many devices
// are healthy of how many.
func lines(groups []*ndevice.DeviceGroup) []string {
	var all []string
	for _, group := range groups {
		healthy := 0
		for _, d := range group.Devices {
			if d.Healthy {
				healthy++
			}
		}
		all = append(all, strings.Join([]string{group.Type, group.Name}, " ")+": "+strings.Repeat("+", healthy)+
			strings.Repeat("-", len(group.Devices)-healthy))
	}
	return all
}

func TestModes_Fingerprint(t *testing.T) {
	p := newPlugin(t, nvmltest.New(mixed()...), map[string]any{"slice_memory": "32GiB", "gpu": gpuBlocks(
		map[string]any{"gpu": "model:*A100*", "mode": "exclusive"},
		map[string]any{"gpu": "index:2", "mode": "timeslice", "replicas": 3},
	)})
	response := next(t, fingerprint(t, p))
	must.Eq(t, []string{
		"gpu NVIDIA A100-SXM4-40GB: +", "gpu NVIDIA A100-SXM4-80GB: +", "timeslice Tesla T4 #2: +++", "slice NVIDIA H200 #3: ++++",
	}, lines(response.Devices))
	for _, group := range response.Devices {
		must.NoError(t, group.Validate())
	}
	must.Eq(t, structs.NewStringAttribute("exclusive"), response.Devices[0].Attributes["isolation"])
	published, err := layout.Read(p.node.Load().runDir)
	must.NoError(t, err)
	gpus := mixed()
	must.Eq(t, map[string]layout.GPU{
		gpus[0].UUID: {Mode: claim.ModeExclusive, MemoryBytes: gpus[0].MemoryBytes},
		gpus[1].UUID: {Mode: claim.ModeExclusive, MemoryBytes: gpus[1].MemoryBytes},
		gpus[2].UUID: {Mode: claim.ModeTimeslice, MemoryBytes: gpus[2].MemoryBytes, Replicas: 3},
		gpus[3].UUID: {
			Mode: claim.ModeSlice, SliceBytes: 32 << 30, Slices: 4, MemoryBytes: gpus[3].MemoryBytes, Enforcement: claim.EnforcementLibrary,
		},
	}, published)
	must.Eq(t, structs.NewStringAttribute("none"), response.Devices[2].Attributes["isolation"])
	must.Eq(t, structs.NewIntAttribute(3, ""), response.Devices[2].Attributes["replicas"])
	must.Eq(t, structs.NewStringAttribute("memory"), response.Devices[3].Attributes["isolation"])
}

// GPUs of one model are one group, as with nomad-device-nvidia, whose attributes are those of the lowest UUID.
func TestExclusive_Groups(t *testing.T) {
	a, b := nvmltest.H200(0), nvmltest.H200(1)
	a.UUID, b.UUID = b.UUID, a.UUID
	b.MemoryBytes = 7 << 30
	p := newPlugin(t, nvmltest.New(a, b), map[string]any{"mode": "exclusive"})
	groups := next(t, fingerprint(t, p)).Devices
	must.Eq(t, []string{"gpu NVIDIA H200: ++"}, lines(groups))
	must.Eq(t, structs.NewIntAttribute(7<<10, "MiB"), groups[0].Attributes["memory"])
	must.Eq(t, structs.NewIntAttribute(2, ""), groups[0].Attributes["healthy_devices"])
	must.Eq(t, []string{b.UUID, a.UUID}, []string{groups[0].Devices[0].ID, groups[0].Devices[1].ID})
	for _, unwanted := range []string{"index", "unique.uuid", "slice_memory", "healthy_slices"} {
		must.MapNotContainsKey(t, groups[0].Attributes, unwanted)
	}
}

func TestExclusive_Reserve(t *testing.T) {
	a, b := nvmltest.H200(0), nvmltest.H200(1)
	p := newPlugin(t, nvmltest.New(a, b), map[string]any{"mode": "exclusive"})
	next(t, fingerprint(t, p))
	reservation, err := p.Reserve([]string{b.UUID, a.UUID})
	must.NoError(t, err)
	must.Eq(t, b.UUID+","+a.UUID, reservation.Envs["NVIDIA_VISIBLE_DEVICES"])
	must.MapLen(t, 3, reservation.Envs)

	claims := claimsOf(t, p)
	must.Len(t, 2, claims)
	for i, g := range []nvml.GPU{a, b} {
		must.Eq(t, claim.ModeExclusive, claims[i].Mode)
		must.False(t, claims[i].Limited())
		must.Eq(t, g.UUID, claims[i].GPU.UUID)
		must.Eq(t, g.MemoryBytes, claims[i].LimitBytes)
	}
	for _, id := range []string{a.UUID + "/slice-000", a.UUID + "/share-000", "GPU-x"} {
		_, err := p.Reserve([]string{id})
		must.ErrorContains(t, err, "not devices of this node's GPUs")
	}
}

func TestTimeslice_Reserve(t *testing.T) {
	g := nvmltest.H200(0)
	p := newPlugin(t, nvmltest.New(g), map[string]any{"mode": "timeslice", "replicas": 2})
	groups := next(t, fingerprint(t, p)).Devices
	must.Eq(t, []string{"timeslice NVIDIA H200 #0: ++"}, lines(groups))
	for _, d := range groups[0].Devices {
		reservation, err := p.Reserve([]string{d.ID})
		must.NoError(t, err)
		must.Eq(t, "void", reservation.Envs["NVIDIA_VISIBLE_DEVICES"])
	}
	claims := claimsOf(t, p)
	must.Len(t, 2, claims, must.Sprint("shares of one GPU exclude each other"))
	must.Eq(t, claim.ModeTimeslice, claims[0].Mode)

	_, err := p.Reserve([]string{groups[0].Devices[0].ID, groups[0].Devices[1].ID})
	must.ErrorContains(t, err, "ask for one")
	for _, id := range []string{g.UUID, g.UUID + "/share-002", g.UUID + "/share-0", g.UUID + "/share--01"} {
		_, err := p.Reserve([]string{id})
		must.ErrorContains(t, err, "not devices of this node's GPUs", must.Sprint(id))
	}
}

// A claim is worth its part of the GPU where claims compute in turns.
func TestReserve_Shares(t *testing.T) {
	slices, replicas := nvmltest.H200(0), nvmltest.H200(1)
	p := newPlugin(t, nvmltest.New(slices, replicas), map[string]any{
		"compute": "shares", "gpu": gpuBlocks(map[string]any{"gpu": "index:1", "mode": "timeslice", "replicas": 20}),
	})
	next(t, fingerprint(t, p))
	replica := func(from, to int) (ids []string) {
		for i := from; i < to; i++ {
			ids = append(ids, fmt.Sprintf("%s/share-%03d", replicas.UUID, i))
		}
		return ids
	}
	want := map[int]int{}
	for _, ids := range [][]string{sliceIDs(slices, 0, 1, 2, 3), sliceIDs(slices, 4), replica(0, 4), replica(4, 14), replica(14, 20)} {
		_, err := p.Reserve(ids)
		must.NoError(t, err)
	}
	for _, c := range claimsOf(t, p) {
		must.Eq(t, 1000, c.Compute.Max)
		must.Eq(t, claim.ClassNormal, c.Compute.Class)
		want[c.Compute.Share]++
	}
	must.Eq(t, map[int]int{29: 1, 7: 1, 200: 1, 500: 1, 300: 1}, want) // 4 and 1 of 140, and 4, 10 and 6 of 20
	published, err := layout.Read(p.node.Load().runDir)
	must.NoError(t, err)
	must.True(t, published[slices.UUID].Shares && published[replicas.UUID].Shares)
}

func TestReserve_DifferentModes(t *testing.T) {
	a, b := nvmltest.H200(0), nvmltest.H200(1)
	p := newPlugin(t, nvmltest.New(a, b), map[string]any{
		"gpu": gpuBlocks(map[string]any{"gpu": "index:0", "mode": "exclusive"}),
	})
	next(t, fingerprint(t, p))
	_, err := p.Reserve([]string{a.UUID, b.UUID + "/slice-000"})
	must.ErrorContains(t, err, "shared in different ways")
	must.SliceEmpty(t, claimsOf(t, p))
}

func TestReserve_MaxSlices(t *testing.T) {
	g := nvmltest.H200(0)
	p := newPlugin(t, nvmltest.New(g), map[string]any{"max_slices": 2})
	next(t, fingerprint(t, p))
	ids := []string{g.UUID + "/slice-000", g.UUID + "/slice-001", g.UUID + "/slice-002"}
	_, err := p.Reserve(ids)
	must.ErrorContains(t, err, "3 slices are more than one task may have on this node, which is 2 (max_slices")
	_, err = p.Reserve(ids[:2])
	must.NoError(t, err)
}

// A configuration that changed over a restart takes effect on a GPU when the tasks have ended that have it as it was.
func TestModes_Change(t *testing.T) {
	for name, tc := range map[string]struct {
		options        map[string]any
		waits, changed string
	}{
		"another mode":           {map[string]any{"mode": "exclusive"}, "gpu NVIDIA H200: -", "gpu NVIDIA H200: +"},
		"slices of another size": {map[string]any{"slice_memory": "35GiB"}, "slice NVIDIA H200 #0: +++-", "slice NVIDIA H200 #0: ++++"},
	} {
		t.Run(name, func(t *testing.T) {
			g := nvmltest.H200(0)
			options := testOptions(t, map[string]any{"slice_memory": "1GiB"})
			p := newPlugin(t, nvmltest.New(g), options)
			ctx, cancel := contextWithCancel(t)
			stream, err := p.Fingerprint(ctx)
			must.NoError(t, err)
			next(t, stream)
			_, err = p.Reserve([]string{g.UUID + "/slice-000"})
			must.NoError(t, err)
			cancel()
			ledger, made := p.node.Load().ledger, claimsOf(t, p)[0]
			init := exec.Command("sleep", "1000")
			must.NoError(t, init.Start())
			t.Cleanup(func() { _ = init.Process.Kill(); _ = init.Wait() })
			must.NoError(t, ledger.Bind(t.Context(), made.ID, claim.Container{Runtime: "test", ID: "c", InitPID: init.Process.Pid}))

			maps.Copy(options, tc.options)
			p = newPlugin(t, nvmltest.New(g), options)
			changes := fingerprint(t, p)
			groups := next(t, changes).Devices
			must.Eq(t, []string{tc.waits}, lines(groups))
			for _, d := range groups[0].Devices {
				must.Eq(t, !d.Healthy, strings.HasPrefix(d.HealthDesc, "waits for claim "+made.ID+", whose GPU is in mode slice (1GiB)"))
			}
			must.NoError(t, init.Process.Kill())
			_ = init.Wait()
			must.Eq(t, []string{tc.changed}, lines(next(t, changes).Devices))
		})
	}
}

// NVIDIA's runtime binds no claim. A whole GPU that was given out for it is waited for as long as anything computes there.
func TestModes_ChangeUnbound(t *testing.T) {
	g := nvmltest.H200(0)
	options := testOptions(t, map[string]any{"mode": "exclusive"})
	p := newPlugin(t, nvmltest.New(g), options)
	_, err := p.Reserve([]string{g.UUID})
	must.NoError(t, err)
	made := claimsOf(t, p)[0]

	fake := nvmltest.New(g)
	fake.SetProcesses(g.UUID, nvml.Process{PID: 1})
	maps.Copy(options, map[string]any{"mode": "slice", "slice_memory": "35GiB"})
	p = newPlugin(t, fake, options)
	p.node.Load().clock.Now = func() time.Time { return time.Now().Add(claim.StartTimeout) }
	changes := fingerprint(t, p)
	groups := next(t, changes).Devices
	must.Eq(t, []string{"slice NVIDIA H200 #0: ----"}, lines(groups))
	must.StrHasPrefix(t, "waits for claim "+made.ID+", whose GPU is in mode exclusive", groups[0].Devices[0].HealthDesc)
	fake.SetProcesses(g.UUID)
	must.Eq(t, []string{"slice NVIDIA H200 #0: ++++"}, lines(next(t, changes).Devices))
}

// What a GPU draws and how fast it runs changes all the time; its attributes stay as they were.
func TestAttributes_Stay(t *testing.T) {
	watts, megahertz := int64(68_000), int64(1980)
	g := nvmltest.H200(0)
	g.PowerMilliwatts, g.GraphicsMHz = &watts, &megahertz
	fake := nvmltest.New(g)
	p := newPlugin(t, fake, nil)
	stream := fingerprint(t, p)
	must.Eq(t, structs.NewIntAttribute(68, "W"), next(t, stream).Devices[0].Attributes["power"])
	more, slower := int64(700_000), int64(345)
	g.PowerMilliwatts, g.GraphicsMHz = &more, &slower
	other := nvmltest.H200(1)
	fake.SetGPUs(g, other)
	attributes := next(t, stream).Devices[0].Attributes
	must.Eq(t, structs.NewIntAttribute(68, "W"), attributes["power"])
	must.Eq(t, structs.NewIntAttribute(1980, "MHz"), attributes["cores_clock"])
}

// The hardware has a say when Nomad validates, which is the second call, and never costs a plugin that runs its GPUs.
func TestSetConfig_GPUs(t *testing.T) {
	options := testOptions(t, map[string]any{"gpu": gpuBlocks(map[string]any{"gpu": "index:7", "mode": "exclusive"})})
	errLost := errors.New("GPU is lost")
	fake := nvmltest.New(nvmltest.H200(0))
	p := newPlugin(t, fake, options)
	must.ErrorContains(t, p.SetConfig(pluginConfig(t, options)), `gpu "index:7" matches no GPU of this node`)
	fake.SetFailed(nvml.Failure{Index: 1, Err: errLost})
	must.NoError(t, p.SetConfig(pluginConfig(t, options)), must.Sprint("a GPU does not answer, and may be the one"))
	fake.SetError(errLost)
	must.NoError(t, p.SetConfig(pluginConfig(t, options)), must.Sprint("there is no driver yet"))
}

func claimsOf(t *testing.T, p *Plugin) []*claim.Claim {
	t.Helper()
	claims, problems, err := p.node.Load().ledger.List(t.Context())
	must.NoError(t, err)
	must.SliceEmpty(t, problems)
	return claims
}
