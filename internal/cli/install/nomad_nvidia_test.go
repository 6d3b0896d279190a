package install

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

const nvidiaBefore = `data_dir = "/opt/nomad/data"
plugin "nomad-device-nvidia" {
  config {
    ignored_gpu_ids    = ["GPU-51d40f7e-0c1a-4e6b-9f3d-5a1e00000001", "the old one"]
    fingerprint_period = "30s"
  }
}
`

// A node with nomad-device-nvidia gets a plugin that offers the same, and that one is turned off.
func TestNomad_fromNvidia(t *testing.T) {
	dir := t.TempDir()
	main := write(t, filepath.Join(dir, "nomad.hcl"), nvidiaBefore)
	o := Options{RuntimePath: testRuntime, ConfigFile: dir}
	config, err := ReadNomad(dir)
	must.NoError(t, err)
	_, _, both := config.BothDevicePlugins()
	must.False(t, both, must.Sprint("there is no plugin of ours yet"))
	plan, err := Nomad{}.Install(t.Context(), o, Entry{})
	must.NoError(t, err)
	notes := strings.Join(plan.Notes, "\n")
	must.StrContains(t, notes, "nomad-device-nvidia is turned off")
	must.StrContains(t, notes, `"the old one" was not taken over`)

	entry := applied(t, Nomad{}.Install, o, Entry{})
	text := read(t, filepath.Join(dir, nomadFile))
	for _, want := range []string{
		`mode = "exclusive"`, `ignored_gpu_ids = ["GPU-51d40f7e-0c1a-4e6b-9f3d-5a1e00000001"]`, `fingerprint_period = "30s"`,
		"turns off what " + main, "plugin \"nomad-device-nvidia\" {\n  config {\n    enabled = false\n",
	} {
		must.StrContains(t, text, want)
	}
	must.Eq(t, nvidiaBefore, read(t, main))
	config, err = ReadNomad(dir)
	must.NoError(t, err)
	_, _, both = config.BothDevicePlugins()
	must.False(t, both)
	again, err := Nomad{}.Install(t.Context(), o, entry)
	must.NoError(t, err)
	must.SliceEmpty(t, again.Changes)

	// How GPUs are shared stays as it was chosen when the old plugin's block goes, which needs no turning off then.
	write(t, filepath.Join(dir, nomadFile), strings.Replace(text, `mode = "exclusive"`, `mode = "timeslice"`, 1))
	write(t, main, "data_dir = \"/opt/nomad/data\"\n")
	applied(t, Nomad{}.Install, o, entry)
	text = read(t, filepath.Join(dir, nomadFile))
	must.StrContains(t, text, `mode = "timeslice"`)
	must.StrNotContains(t, text, "nomad-device-nvidia\" {")

	applied(t, Nomad{}.Uninstall, o, entry)
	must.FileNotExists(t, filepath.Join(dir, nomadFile))
}

func TestNomad_besideNvidia(t *testing.T) {
	const ours, theirs, off = "plugin \"nomad-device-tranche\" {}\n", "plugin \"nomad-device-nvidia\" {}\n",
		"plugin \"nomad-device-nvidia\" {\n  config {\n    enabled = false\n  }\n}\n"
	for name, tc := range map[string]struct {
		files       map[string]string
		both        bool
		err, note   string
		mode, noOff bool
	}{
		"read after ours":     {files: map[string]string{"z.hcl": theirs}, err: "set enabled = false in its block; nothing was changed"},
		"turned off":          {files: map[string]string{"a.hcl": theirs, "b.hcl": off}, noOff: true},
		"turned on again":     {files: map[string]string{"a.hcl": off, "b.hcl": strings.ReplaceAll(off, "false", "true")}, mode: true},
		"a later empty block": {files: map[string]string{"a.hcl": off, "b.hcl": theirs}, noOff: true},
		"both by an operator": {files: map[string]string{"a.hcl": theirs + ours}, both: true, noOff: true, note: "counts a GPU twice"},
		"in JSON": {files: map[string]string{
			"a.json": `{"plugin": {"nvidia": {"config": {"fingerprint_period": "3s"}}}}`,
		}, mode: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "0.hcl"), "data_dir = \"/d\"\n")
			for file, text := range tc.files {
				write(t, filepath.Join(dir, file), text)
			}
			config, err := ReadNomad(dir)
			must.NoError(t, err)
			_, _, both := config.BothDevicePlugins()
			must.Eq(t, tc.both, both)
			o := Options{RuntimePath: testRuntime, ConfigFile: dir}
			plan, err := Nomad{}.Install(t.Context(), o, Entry{})
			if tc.err != "" {
				must.ErrorContains(t, err, tc.err)
				return
			}
			must.NoError(t, err)
			must.StrContains(t, strings.Join(plan.Notes, "\n"), tc.note)
			text := string(plan.Changes[0].after)
			must.Eq(t, tc.mode, strings.Contains(text, `mode = "exclusive"`))
			must.Eq(t, !tc.noOff, strings.Contains(text, "enabled = false"))
			if name == "in JSON" {
				must.StrContains(t, text, `fingerprint_period = "3s"`)
			}
		})
	}
}
