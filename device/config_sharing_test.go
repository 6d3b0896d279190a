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
	"github.com/tranche-gpu/tranche/device/share"
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
		want [4]share.Policy
	}{
		"nothing said": {``, [4]share.Policy{
			{Mode: claim.ModeSlice, SliceBytes: 1024 * mebi}, {Mode: claim.ModeSlice, SliceBytes: 1024 * mebi},
			{Mode: claim.ModeSlice, SliceBytes: 1024 * mebi}, {Mode: claim.ModeSlice, SliceBytes: 1024 * mebi},
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
			}`, [4]share.Policy{
			{Mode: claim.ModeMIG, Profiles: []string{"3g.40gb", "2g.20gb", "2g.20gb"}},
			{Mode: claim.ModeMIG, Profiles: []string{"3g.40gb", "2g.20gb", "2g.20gb"}},
			{Mode: claim.ModeExclusive}, {Mode: claim.ModeTimeslice, Replicas: 20},
		}},
		"the first match wins": {`
			gpu "index:0" { slice_memory = "4GiB" }
			gpu "model:*A100*" { mode = "mig" mig { profiles = ["1g.10gb"] } }
			gpu "pci:0000:1a:00.0" { slice_memory = "64MiB" }
			gpu "model:*" { mode = "exclusive" }`, [4]share.Policy{
			{Mode: claim.ModeSlice, SliceBytes: 4096 * mebi}, {Mode: claim.ModeMIG, Profiles: []string{"1g.10gb"}},
			{Mode: claim.ModeSlice, SliceBytes: 64 * mebi}, {Mode: claim.ModeExclusive},
		}},
		"other defaults": {`
			mode     = "timeslice"
			replicas = 8
			gpu "1" { replicas = 3 }
			gpu "2" { mode = "slice" }
			gpu "3" { mode = "exclusive" }`, [4]share.Policy{
			{Mode: claim.ModeTimeslice, Replicas: 8}, {Mode: claim.ModeTimeslice, Replicas: 3},
			{Mode: claim.ModeSlice, SliceBytes: 1024 * mebi}, {Mode: claim.ModeExclusive},
		}},
		"instances for all": {`
			mode = "mig"
			mig { profiles = ["7g.80gb"] }
			gpu "2" { mode = "slice" }
			gpu "3" { mig { profiles = ["1g.18gb"] } }`, [4]share.Policy{
			{Mode: claim.ModeMIG, Profiles: []string{"7g.80gb"}}, {Mode: claim.ModeMIG, Profiles: []string{"7g.80gb"}},
			{Mode: claim.ModeSlice, SliceBytes: 1024 * mebi}, {Mode: claim.ModeMIG, Profiles: []string{"1g.18gb"}},
		}},
		"instances on demand": {`
			mode = "mig"
			mig { profiles = ["7g.80gb"] }
			gpu "0" { mode = "mig" mig { profiles = [] } slice_memory = "5GiB" }
			gpu "1" { mig {} }
			gpu "2" { mode = "mig" }
			gpu "3" { mode = "slice" }`, [4]share.Policy{
			{Mode: claim.ModeMIG, SliceBytes: 5 << 30}, {Mode: claim.ModeMIG, SliceBytes: 1 << 30},
			{Mode: claim.ModeMIG, Profiles: []string{"7g.80gb"}}, {Mode: claim.ModeSlice, SliceBytes: 1 << 30},
		}},
		"instances on demand for all": {`
			mode         = "mig"
			slice_memory = "2GiB"
			gpu "1" { slice_memory = "4GiB" }
			gpu "2" { mig { profiles = ["1g.5gb"] } }
			gpu "3" { mode = "exclusive" }`, [4]share.Policy{
			{Mode: claim.ModeMIG, SliceBytes: 2 << 30}, {Mode: claim.ModeMIG, SliceBytes: 4 << 30},
			{Mode: claim.ModeMIG, Profiles: []string{"1g.5gb"}}, {Mode: claim.ModeExclusive},
		}},
		"instances that tasks share": {`
			gpu "0" {
				mode = "mig"
				mig {
					profiles = ["3g.20gb"]
					mode     = "slice"
				}
				compute = "shares"
			}
			gpu "1" {
				mode         = "mig"
				slice_memory = "4GiB"
				mig {
					mode     = "slice"
					profiles = ["2g.10gb", "2g.10gb"]
				}
			}
			gpu "2" {
				mode     = "mig"
				replicas = 3
				mig {
					profiles = ["1g.5gb"]
					mode     = "timeslice"
				}
			}`, [4]share.Policy{
			{Mode: claim.ModeMIG, Profiles: []string{"3g.20gb"}, Instances: &share.Policy{
				Mode: claim.ModeSlice, SliceBytes: 1 << 30, Shares: true,
			}},
			{Mode: claim.ModeMIG, Profiles: []string{"2g.10gb", "2g.10gb"}, Instances: &share.Policy{
				Mode: claim.ModeSlice, SliceBytes: 4 << 30,
			}},
			{Mode: claim.ModeMIG, Profiles: []string{"1g.5gb"}, Instances: &share.Policy{Mode: claim.ModeTimeslice, Replicas: 3}},
			{Mode: claim.ModeSlice, SliceBytes: 1 << 30},
		}},
		"shares where a mode has them": {`
			compute = "shares"
			gpu "1" { compute = "driver" }
			gpu "2" {
				mode     = "timeslice"
				replicas = 20
			}
			gpu "3" { mode = "exclusive" }`, [4]share.Policy{
			{Mode: claim.ModeSlice, SliceBytes: 1 << 30, Shares: true}, {Mode: claim.ModeSlice, SliceBytes: 1 << 30},
			{Mode: claim.ModeTimeslice, Replicas: 20, Shares: true}, {Mode: claim.ModeExclusive},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := parseHCL(t, tc.text)
			must.NoError(t, err)
			how := p.node.Load().sharing
			for i, g := range mixed() {
				got := how.of(g)
				must.Eq(t, tc.want[i].Mode, got.Mode, must.Sprint(g.Name))
				must.Eq(t, tc.want[i].SliceBytes, got.SliceBytes, must.Sprint(g.Name))
				must.Eq(t, tc.want[i].Replicas, got.Replicas, must.Sprint(g.Name))
				must.Eq(t, tc.want[i].Profiles, got.Profiles, must.Sprint(g.Name))
				must.Eq(t, tc.want[i].Shares, got.Shares, must.Sprint(g.Name))
				must.Eq(t, tc.want[i].Instances, got.Instances, must.Sprint(g.Name))
			}
			must.SliceEmpty(t, how.idle(mixed()))
		})
	}
}

// Errors name the block.
func TestSharing_Errors(t *testing.T) {
	for text, want := range map[string]string{
		`gpu "index:0" { mode = "mgi" }`:                             `gpu "index:0": mode must be one of "slice", "exclusive"`,
		`gpu "index:0" { slice_memroy = "1GiB" }`:                    `gpu "index:0": unknown option "slice_memroy"; the options are mode,`,
		`gpu "index:0" { slice_memory = "1G" }`:                      `gpu "index:0": slice_memory: "1G" is not an amount`,
		`gpu "index:0" { mode = "exclusive" slice_memory = "1GiB" }`: `gpu "index:0": slice_memory is not for mode "exclusive"`,
		`gpu "index:0" { compute = "turns" }`:                        `gpu "index:0": compute must be "driver" or "shares", got "turns"`,
		`gpu "index:0" { mode = "mps" compute = "shares" }`:          `compute = "shares" is for modes "slice" and "timeslice", and the mode is "mps": MPS divides`,
		`gpu "index:0" { mode = "mig" compute = "shares" }`:          `the mode is "mig": MIG divides the GPU's multiprocessors among its instances`,
		`gpu "index:0" { mode = "exclusive" compute = "shares" }`:    `the mode is "exclusive": a whole GPU has nobody`,
		`gpu "index:0" {
			mode = "mig"
			mig { mode = "slice" }
		}`: `gpu "index:0": mig.mode needs mig.profiles: an instance that is created on demand is for one task`,
		`gpu "index:0" {
			mode = "mig"
			mig {
				profiles = ["3g.20gb"]
				mode     = "mps"
			}
		}`: `gpu "index:0": mig.mode must be "slice" or "timeslice", got "mps"; leave it out if each instance is for one task`,
		`gpu "index:0" {
			mode = "mig"
			mig {
				profiles = ["3g.20gb"]
				mode     = "timeslice"
			}
		}`: `gpu "index:0": replicas must be set in mode "timeslice"`,
		`gpu "index:0" {
			mode         = "mig"
			slice_memory = "1GiB"
			mig {
				profiles = ["3g.20gb"]
				mode     = "timeslice"
			}
		}`: `gpu "index:0": slice_memory is not for mode "timeslice", which has no slices`,
		`gpu "index:0" { mode = 7 }`:                                                   `gpu "index:0": mode must be a string, got a number`,
		`gpu "index:0" { mode = "timeslice" replicas = "many" }`:                       `gpu "index:0": replicas must be a whole number, got a string`,
		`gpu "index:0" { mode = "timeslice" replicas = 1 }`:                            `gpu "index:0": replicas must be from 2 to 1000, got 1`,
		`gpu "index:0" { mode = "timeslice" replicas = 2.5 }`:                          `gpu "index:0": replicas must be a whole number, got 2.5`,
		`gpu "index:0" { mode = "timeslice" }`:                                         `gpu "index:0": replicas must be set in mode "timeslice"`,
		`gpu "index:0" { replicas = 3 }`:                                               `gpu "index:0": replicas is for mode "timeslice"`,
		`gpu "index:0" { mig { profiles = ["1g.5gb"] } }`:                              `gpu "index:0": mig is for mode "mig"`,
		`gpu "index:0" { mode = "mig" mig { profile = ["1g.5gb"] } }`:                  `gpu "index:0": unknown option "profile"`,
		`gpu "index:0" { mode = "mig" mig { profiles = "1g.5gb" } }`:                   `mig.profiles must be a list of names, such as ["3g.20gb"], got a string`,
		`gpu "index:0" { mode = "mig" mig { profiles = [1] } }`:                        `mig.profiles must be a list of names, such as ["3g.20gb"], got a number`,
		`gpu "index:0" { mode = "mig" mig = "slice" }`:                                 `gpu "index:0": mig must be a block, got a string`,
		"gpu \"0\" { mode = \"mig\" \n mig { profiles = [\"1g.5gb\"] }\n mig {} }":     `gpu "0": mig must be there once only`,
		`gpu "0" { mode = "mig" slice_memory = "1GiB" mig { profiles = ["1g.5gb"] } }`: `gpu "0": slice_memory and mig.profiles exclude each other`,
		`gpu { mode = "slice" }`:                                                       `gpu must be a block with a label`,
		`gpu "GeForce" {}`:                                                             `gpu "GeForce": "GeForce" is no index of a GPU`,
		`gpu "a" "b" {}`:                                                               `gpu "a": "a" is no index`,
		`gpu "0" "1" {}`:                                                               `gpu "0": unknown option "1"`,
		`gpu = "index:0"`:                                                              `gpu must be a block with a label`,
		`gpu = ["index:0"]`:                                                            `gpu must be a block with a label`,
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

// A block without effect is an error, unless it is optional.
func TestSharing_Idle(t *testing.T) {
	for text, want := range map[string]string{
		`gpu "index:7" {}`:                               `gpu "index:7" matches no GPU of this node: it has 0: NVIDIA A100-SXM4-40GB (GPU-00000000-`,
		`gpu "model:*L4" { optional = true }`:            "",
		"gpu \"model:*A100*\" {}\ngpu \"index:0\" {}":    `gpu "index:0" has no effect: earlier blocks match all its GPUs (gpu "model:*A100*" first)`,
		"gpu \"model:*\" {}\ngpu \"model:*T4\" {}":       `gpu "model:*T4" has no effect`,
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
