package device

import (
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
)

// parseHCL configures a plugin as an agent does: from the text of its
// configuration file, by the schema.
func parseHCL(t *testing.T, text string) (*Plugin, error) {
	t.Helper()
	p := New(hclog.NewNullLogger(), "v0.0.1")
	p.newNVML = func(string) nvml.Interface { return nvmltest.New() }
	var config Config
	hclutils.NewConfigParser(configSpec).ParseHCL(t, "config {\n"+text+"\n}", &config)
	var encoded []byte
	must.NoError(t, base.MsgPackEncode(&encoded, config))
	return p, p.SetConfig(&base.Config{PluginConfig: encoded})
}

// mixed are the GPUs of a node of several generations.
func mixed() []nvml.GPU {
	a100, another, t4, h200 := nvmltest.H200(0), nvmltest.H200(1), nvmltest.H200(2), nvmltest.H200(3)
	a100.Name, another.Name, t4.Name = "NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "Tesla T4"
	return []nvml.GPU{a100, another, t4, h200}
}

func TestSharing(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		want [4]policy
	}{
		"nothing said": {``, [4]policy{
			{mode: claim.ModeSlice, sliceBytes: 1024 * mebi}, {mode: claim.ModeSlice, sliceBytes: 1024 * mebi},
			{mode: claim.ModeSlice, sliceBytes: 1024 * mebi}, {mode: claim.ModeSlice, sliceBytes: 1024 * mebi},
		}},
		"every mode": {`
			mode         = "slice"
			slice_memory = "2GiB"
			gpu "model:NVIDIA A100*" {
				mode = "mig"
				mig { profiles = ["3g.40gb", "2g.20gb", "2g.20gb"] }
			}
			gpu "index:2" { mode = "exclusive" }
			gpu "uuid:GPU-00000003-1111-2222-3333-444444444444" {
				mode     = "timeslice"
				replicas = 20
			}`, [4]policy{
			{mode: claim.ModeMIG, profiles: []string{"3g.40gb", "2g.20gb", "2g.20gb"}},
			{mode: claim.ModeMIG, profiles: []string{"3g.40gb", "2g.20gb", "2g.20gb"}},
			{mode: claim.ModeExclusive}, {mode: claim.ModeTimeslice, replicas: 20},
		}},
		"the first match wins": {`
			gpu "index:0" { slice_memory = "4GiB" }
			gpu "model:*A100*" { mode = "mig" mig { profiles = ["1g.10gb"] } }
			gpu "pci:0000:1a:00.0" { slice_memory = "64MiB" }
			gpu "model:*" { mode = "exclusive" }`, [4]policy{
			{mode: claim.ModeSlice, sliceBytes: 4096 * mebi}, {mode: claim.ModeMIG, profiles: []string{"1g.10gb"}},
			{mode: claim.ModeSlice, sliceBytes: 64 * mebi}, {mode: claim.ModeExclusive},
		}},
		"other defaults": {`
			mode     = "timeslice"
			replicas = 8
			gpu "1" { replicas = 3 }
			gpu "2" { mode = "slice" }
			gpu "3" { mode = "exclusive" }`, [4]policy{
			{mode: claim.ModeTimeslice, replicas: 8}, {mode: claim.ModeTimeslice, replicas: 3},
			{mode: claim.ModeSlice, sliceBytes: 1024 * mebi}, {mode: claim.ModeExclusive},
		}},
		"instances for all": {`
			mode = "mig"
			mig { profiles = ["7g.80gb"] }
			gpu "2" { mode = "slice" }
			gpu "3" { mig { profiles = ["1g.18gb"] } }`, [4]policy{
			{mode: claim.ModeMIG, profiles: []string{"7g.80gb"}}, {mode: claim.ModeMIG, profiles: []string{"7g.80gb"}},
			{mode: claim.ModeSlice, sliceBytes: 1024 * mebi}, {mode: claim.ModeMIG, profiles: []string{"1g.18gb"}},
		}},
		"instances on demand": {`
			mode = "mig"
			mig { profiles = ["7g.80gb"] }
			gpu "0" { mode = "mig" mig { profiles = [] } slice_memory = "5GiB" }
			gpu "1" { mig {} }
			gpu "2" { mode = "mig" }
			gpu "3" { mode = "slice" }`, [4]policy{
			{mode: claim.ModeMIG, sliceBytes: 5 << 30}, {mode: claim.ModeMIG, sliceBytes: 1 << 30},
			{mode: claim.ModeMIG, profiles: []string{"7g.80gb"}}, {mode: claim.ModeSlice, sliceBytes: 1 << 30},
		}},
		"instances on demand for all": {`
			mode         = "mig"
			slice_memory = "2GiB"
			gpu "1" { slice_memory = "4GiB" }
			gpu "2" { mig { profiles = ["1g.5gb"] } }
			gpu "3" { mode = "exclusive" }`, [4]policy{
			{mode: claim.ModeMIG, sliceBytes: 2 << 30}, {mode: claim.ModeMIG, sliceBytes: 4 << 30},
			{mode: claim.ModeMIG, profiles: []string{"1g.5gb"}}, {mode: claim.ModeExclusive},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := parseHCL(t, tc.text)
			must.NoError(t, err)
			how := p.node.Load().sharing
			for i, g := range mixed() {
				got := how.of(g)
				must.Eq(t, tc.want[i].mode, got.mode, must.Sprint(g.Name))
				must.Eq(t, tc.want[i].sliceBytes, got.sliceBytes, must.Sprint(g.Name))
				must.Eq(t, tc.want[i].replicas, got.replicas, must.Sprint(g.Name))
				must.Eq(t, tc.want[i].profiles, got.profiles, must.Sprint(g.Name))
			}
			must.SliceEmpty(t, how.idle(mixed()))
		})
	}
}

// What is wrong with a block is said with the block's name.
func TestSharing_Errors(t *testing.T) {
	for text, want := range map[string]string{
		`gpu "index:0" { mode = "mgi" }`:                                               `gpu "index:0": mode: "mgi" is none of "slice", "exclusive"`,
		`gpu "index:0" { slice_memroy = "1GiB" }`:                                      `gpu "index:0": there is no option "slice_memroy" here; there are mode,`,
		`gpu "index:0" { slice_memory = "1G" }`:                                        `gpu "index:0": slice_memory: "1G" is not an amount`,
		`gpu "index:0" { mode = "exclusive" slice_memory = "1GiB" }`:                   `gpu "index:0": slice_memory: there are no slices in mode "exclusive"`,
		`gpu "index:0" { mode = 7 }`:                                                   `gpu "index:0": mode is a number, and has to be a text`,
		`gpu "index:0" { mode = "timeslice" replicas = "many" }`:                       `gpu "index:0": replicas is a string, and has to be a whole number`,
		`gpu "index:0" { mode = "timeslice" replicas = 1 }`:                            `gpu "index:0": replicas: 1 is not from 2 to 1000`,
		`gpu "index:0" { mode = "timeslice" replicas = 2.5 }`:                          `gpu "index:0": replicas is a number, and has to be a whole number`,
		`gpu "index:0" { mode = "timeslice" }`:                                         `gpu "index:0": replicas: mode "timeslice" needs to know`,
		`gpu "index:0" { replicas = 3 }`:                                               `gpu "index:0": replicas: it belongs to mode "timeslice"`,
		`gpu "index:0" { mig { profiles = ["1g.5gb"] } }`:                              `gpu "index:0": mig: it belongs to mode "mig"`,
		`gpu "index:0" { mode = "mig" mig { profile = ["1g.5gb"] } }`:                  `gpu "index:0": there is no option "profile" here`,
		`gpu "index:0" { mode = "mig" mig { profiles = "1g.5gb" } }`:                   `profiles is a string, and has to be a list`,
		"gpu \"0\" { mode = \"mig\" \n mig { profiles = [\"1g.5gb\"] }\n mig {} }":     `gpu "0": mig: it is there twice`,
		`gpu "0" { mode = "mig" slice_memory = "1GiB" mig { profiles = ["1g.5gb"] } }`: `gpu "0": slice_memory: the instances are`,
		`gpu { mode = "slice" }`:                                                       `gpu: it has to be a block with a label`,
		`gpu "GeForce" {}`:                                                             `gpu "GeForce": "GeForce" is no index of a GPU`,
		`gpu "a" "b" {}`:                                                               `gpu "a": "a" is no index`,
		`gpu "0" "1" {}`:                                                               `gpu "0": there is no option "1" here`,
		`gpu = "index:0"`:                                                              `gpu: it has to be a block with a label`,
		`gpu = ["index:0"]`:                                                            `gpu: it has to be a block with a label`,
		"gpu \"0\" {}\ngpu \"index:0\" {}":                                             `gpu "index:0": an earlier block, gpu "0", names the same`,
		"gpu \"0\" {}\ngpu \"0\" {}":                                                   `gpu "0": an earlier block, gpu "0", names the same`,
	} {
		t.Run(text, func(t *testing.T) {
			p, err := parseHCL(t, text)
			must.ErrorContains(t, err, want)
			must.Nil(t, p.node.Load())
		})
	}
}

// A block that no GPU is shared by is a fault, unless it says that it may be.
func TestSharing_Idle(t *testing.T) {
	for text, want := range map[string]string{
		`gpu "index:7" {}`:                               `gpu "index:7" matches no GPU of this node: it has 0: NVIDIA A100-SXM4-40GB (GPU-00000000-`,
		`gpu "model:*L4" { optional = true }`:            "",
		"gpu \"model:*A100*\" {}\ngpu \"index:0\" {}":    `gpu "index:0" never counts: earlier blocks match all its GPUs (gpu "model:*A100*" first)`,
		"gpu \"model:*\" {}\ngpu \"model:*T4\" {}":       `gpu "model:*T4" never counts`,
		"gpu \"model:*SXM4-40*\" {}\ngpu \"model:*\" {}": "",
	} {
		p, err := parseHCL(t, text)
		must.NoError(t, err)
		how := p.node.Load().sharing
		wrong := how.idle(mixed())
		if want == "" {
			must.SliceEmpty(t, wrong, must.Sprint(text))
			continue
		}
		must.Len(t, 1, wrong, must.Sprint(text))
		must.ErrorContains(t, wrong[0], want)
	}
}
