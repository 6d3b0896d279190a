package device

import (
	"context"
	"strings"
	"testing"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxb200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/mig"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
)

// onServer is the library of one of go-nvml's mock servers.
func onServer(t *testing.T, s *server.Server) *nvml.Library {
	t.Helper()
	library := nvml.NewWith(nvmltest.Server(s))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		must.NoError(t, library.Close(ctx))
	})
	return library
}

func migBlock(gpus string, profiles ...string) map[string]any {
	names := []any{}
	for _, name := range profiles {
		names = append(names, name)
	}
	return map[string]any{"gpu": gpus, "mode": "mig", "mig": []any{map[string]any{"profiles": names}}}
}

// The declared instances are made on every GPU, and offered as nomad-device-nvidia names them.
func TestMIG_Declared(t *testing.T) {
	for name, tc := range map[string]struct {
		server   *server.Server
		profiles []string
		want     []string
	}{
		"A100": {dgxa100.New(), []string{"3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb"}, []string{
			"gpu Mock NVIDIA A100-SXM4-40GB MIG 3g.20gb: ++++++++", "gpu Mock NVIDIA A100-SXM4-40GB MIG 2g.10gb: ++++++++",
			"gpu Mock NVIDIA A100-SXM4-40GB MIG 1g.5gb: ++++++++++++++++",
		}},
		"H100": {dgxh100.New(), []string{"7g.80gb"}, []string{"gpu NVIDIA H100 80GB HBM3 MIG 7g.80gb: ++++++++"}},
		"H200": {dgxh200.New(), []string{"7g.141gb"}, []string{"gpu NVIDIA H200 141GB HBM3e MIG 7g.141gb: ++++++++"}},
		"B200": {dgxb200.New(), []string{"2g.45gb", "2g.45gb"}, []string{"gpu NVIDIA B200 180GB HBM3e MIG 2g.45gb: ++++++++++++++++"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlugin(t, onServer(t, tc.server), map[string]any{"gpu": gpuBlocks(migBlock("model:*", tc.profiles...))})
			groups := next(t, fingerprint(t, p)).Devices
			must.SliceContainsAll(t, tc.want, lines(groups))
			for _, group := range groups {
				must.NoError(t, group.Validate())
				must.Eq(t, structs.NewStringAttribute("hardware"), group.Attributes["isolation"])
				must.Eq(t, structs.NewStringAttribute("mig"), group.Attributes["mode"])
			}
		})
	}
}

// migNode is a plugin on a mock DGX H100 whose first GPU is cut up; the others are slices.
type migNode struct {
	library *nvml.Library
	options map[string]any
	plugin  *Plugin
}

func newMIGNode(t *testing.T, profiles ...string) *migNode {
	t.Helper()
	n := &migNode{library: onServer(t, dgxh100.New())}
	n.options = testOptions(t, map[string]any{"gpu": gpuBlocks(migBlock("index:0", profiles...))})
	n.plugin = newPlugin(t, n.library, n.options)
	return n
}

// again is the plugin after a restart of the agent, with other profiles.
func (n *migNode) again(t *testing.T, profiles ...string) {
	t.Helper()
	n.options["gpu"] = gpuBlocks(migBlock("index:0", profiles...))
	n.plugin = newPlugin(t, n.library, n.options)
}

func (n *migNode) gpu(t *testing.T) nvml.GPU {
	t.Helper()
	node, err := n.library.Read(t.Context())
	must.NoError(t, err)
	return node.GPUs[0]
}

// layout are the instances of the GPU: profile and slot.
func (n *migNode) layout(t *testing.T) map[int]string {
	t.Helper()
	all := map[int]string{}
	for _, instance := range n.gpu(t).MIG.Instances {
		all[instance.Start] = instance.Profile
	}
	return all
}

func (n *migNode) named(t *testing.T, profile string) nvml.MIGInstance {
	t.Helper()
	for _, instance := range n.gpu(t).MIG.Instances {
		if instance.Profile == profile {
			return instance
		}
	}
	t.Fatalf("there is no instance %s: %v", profile, n.layout(t))
	return nvml.MIGInstance{}
}

func TestMIG_Reserve(t *testing.T) {
	n := newMIGNode(t, "3g.40gb", "1g.10gb")
	next(t, fingerprint(t, n.plugin))
	three, one := n.named(t, "3g.40gb"), n.named(t, "1g.10gb")
	reservation, err := n.plugin.Reserve([]string{three.UUID, one.UUID})
	must.NoError(t, err)
	must.Eq(t, three.UUID+","+one.UUID, reservation.Envs["NVIDIA_VISIBLE_DEVICES"])
	must.MapLen(t, 3, reservation.Envs)
	for _, c := range claimsOf(t, n.plugin) {
		must.Eq(t, claim.ModeMIG, c.Mode)
		must.False(t, c.Limited())
		must.Eq(t, n.gpu(t).UUID, c.PhysicalGPU())
		instance := n.named(t, c.MIG.Profile)
		must.Eq(t, instance.UUID, c.GPU.UUID)
		must.Eq(t, instance.Start, c.MIG.Start)
		must.Eq(t, instance.GPUInstance, c.MIG.GPUInstance)
		must.Eq(t, instance.MemoryBytes, c.LimitBytes)
	}
	for _, id := range []string{n.gpu(t).UUID, n.gpu(t).UUID + "/slice-000", "MIG-x", ""} {
		_, err := n.plugin.Reserve([]string{id})
		must.ErrorContains(t, err, "not devices of this node's GPUs", must.Sprint(id))
	}
}

// An instance that somebody uses stays; what is free is made again around it, and the rest when it is free.
func TestMIG_LayoutChanges(t *testing.T) {
	n := newMIGNode(t, "1g.10gb", "1g.10gb")
	fingerprintOnce(t, n.plugin)
	used, free := n.gpu(t).MIG.Instances[0], n.gpu(t).MIG.Instances[1]
	_, err := n.plugin.Reserve([]string{used.UUID})
	must.NoError(t, err)

	n.again(t, "3g.40gb")
	groups := fingerprintOnce(t, n.plugin).Devices
	must.Eq(t, map[int]string{used.Start: "1g.10gb", 4: "3g.40gb"}, n.layout(t), must.Sprint("the free one was in slot ", free.Start))
	must.SliceContains(t, lines(groups), "gpu NVIDIA H100 80GB HBM3 MIG 3g.40gb: +")
	must.SliceNotContains(t, lines(groups), "gpu NVIDIA H100 80GB HBM3 MIG 1g.10gb: +")

	n.again(t, "7g.80gb")
	fingerprintOnce(t, n.plugin)
	must.Eq(t, map[int]string{used.Start: "1g.10gb", 4: "3g.40gb"}, n.layout(t), must.Sprint("nothing changes while it would not do"))

	n.again(t, "7g.80gb")
	n.plugin.node.Load().clock.Now = func() time.Time { return time.Now().Add(time.Hour) } // the claim's container never came
	fingerprintOnce(t, n.plugin)
	must.Eq(t, map[int]string{0: "7g.80gb"}, n.layout(t))
}

// Of a profile no more instances are offered than are declared, also while others of it are used.
func TestMIG_Surplus(t *testing.T) {
	n := newMIGNode(t, "1g.10gb", "1g.10gb")
	groups := fingerprintOnce(t, n.plugin).Devices
	must.SliceContains(t, lines(groups), "gpu NVIDIA H100 80GB HBM3 MIG 1g.10gb: ++")
	for _, group := range groups {
		if group.Name == "NVIDIA H100 80GB HBM3 MIG 1g.10gb" {
			must.Eq(t, structs.NewIntAttribute(16, ""), group.Attributes["sm_count"])
			must.Eq(t, structs.NewIntAttribute(10<<10, "MiB"), group.Attributes["memory"])
		}
	}
	for _, instance := range n.gpu(t).MIG.Instances {
		_, err := n.plugin.Reserve([]string{instance.UUID})
		must.NoError(t, err)
	}
	n.again(t, "1g.10gb")
	must.SliceContains(t, lines(next(t, fingerprint(t, n.plugin)).Devices), "gpu NVIDIA H100 80GB HBM3 MIG 1g.10gb: +")
	must.MapLen(t, 2, n.layout(t))
}

// A GPU instance without a compute instance is what a plugin leaves that dies in between.
func TestMIG_Leftover(t *testing.T) {
	s := dgxh100.New()
	device, ret := s.DeviceGetHandleByIndex(0)
	must.Eq(t, gonvml.SUCCESS, ret)
	n := &migNode{library: onServer(t, s)}
	n.options = testOptions(t, map[string]any{"gpu": gpuBlocks(migBlock("index:0", "7g.80gb"))})
	_, ret = device.SetMigMode(gonvml.DEVICE_MIG_ENABLE)
	must.Eq(t, gonvml.SUCCESS, ret)
	profile, ret := device.GetGpuInstanceProfileInfo(gonvml.GPU_INSTANCE_PROFILE_1_SLICE)
	must.Eq(t, gonvml.SUCCESS, ret)
	_, ret = device.CreateGpuInstanceWithPlacement(&profile, &gonvml.GpuInstancePlacement{Start: 3, Size: 1})
	must.Eq(t, gonvml.SUCCESS, ret)
	must.Eq(t, -1, n.gpu(t).MIG.Instances[0].ComputeInstance)

	n.plugin = newPlugin(t, n.library, n.options)
	groups := next(t, fingerprint(t, n.plugin)).Devices
	must.SliceContains(t, lines(groups), "gpu NVIDIA H100 80GB HBM3 MIG 7g.80gb: +")
	must.Eq(t, map[int]string{0: "7g.80gb"}, n.layout(t))
}

// What can't be is said, and nothing is changed.
func TestMIG_Impossible(t *testing.T) {
	for want, profiles := range map[string][]string{
		"mig.profiles do not fit on the GPU together": {"3g.40gb", "4g.40gb", "1g.10gb"},
		`it has no profile "3g.20gb"; it has 1g.10gb`: {"3g.20gb"},
	} {
		n := newMIGNode(t, profiles...)
		next(t, fingerprint(t, n.plugin))
		must.SliceEmpty(t, n.gpu(t).MIG.Instances)
		node := n.plugin.node.Load()
		node.layout.Apply(t.Context(), node.inventory.list()[:1], func(_ string, reason error) {
			must.ErrorContains(t, reason, want)
		})
	}
}

// What cannot be ends the start of an agent, with the block's name.
func TestSetConfig_ImpossibleMIG(t *testing.T) {
	none := nvmltest.New(mixed()...)
	options := testOptions(t, map[string]any{"gpu": gpuBlocks(migBlock("model:Tesla T4", "1g.4gb"))})
	p := newPlugin(t, none, options)
	must.ErrorContains(t, p.SetConfig(pluginConfig(t, options)),
		`gpu "model:Tesla T4": the GPU 2, Tesla T4 (GPU-00000002-1111-2222-3333-444444444444), cannot be in mode "mig": it has no MIG`)

	for want, profiles := range map[string][]string{
		`gpu "index:0": the GPU 0, NVIDIA H100 80GB HBM3`: {"3g.40gb", "4g.40gb", "1g.10gb"},
		`it has no profile "1g.5gb"; it has 1g.10gb`:      {"1g.5gb"},
	} {
		n := newMIGNode(t, profiles...)
		must.NoError(t, n.library.SetMIG(t.Context(), n.gpu(t).UUID, true))
		must.ErrorContains(t, n.plugin.SetConfig(pluginConfig(t, n.options)), want)
	}
	n := newMIGNode(t, "3g.40gb", "1g.10gb")
	must.NoError(t, n.plugin.SetConfig(pluginConfig(t, n.options)))
}

// Whole GPUs that somebody has cut up are offered as they are, as nomad-device-nvidia does.
func TestExclusive_InstancesAsFound(t *testing.T) {
	library := onServer(t, dgxh100.New())
	node, err := library.Read(t.Context())
	must.NoError(t, err)
	uuid := node.GPUs[0].UUID
	must.NoError(t, library.SetMIG(t.Context(), uuid, true))
	profiles, err := library.MIGProfiles(t.Context(), uuid)
	must.NoError(t, err)
	for _, profile := range profiles {
		if profile.Name == "2g.20gb" {
			_, err := library.CreateInstance(t.Context(), uuid, profile, mig.Place{Start: 2, Size: 2})
			must.NoError(t, err)
		}
	}
	p := newPlugin(t, library, map[string]any{"mode": "exclusive"})
	groups := next(t, fingerprint(t, p)).Devices
	must.SliceContainsAll(t, []string{
		"gpu NVIDIA H100 80GB HBM3: +++++++", "gpu NVIDIA H100 80GB HBM3 MIG 2g.20gb: +",
	}, lines(groups))
	for _, group := range groups {
		if strings.HasSuffix(group.Name, "2g.20gb") {
			_, err := p.Reserve([]string{group.Devices[0].ID})
			must.NoError(t, err)
			must.Eq(t, claim.ModeMIG, claimsOf(t, p)[0].Mode)
		}
	}
}
