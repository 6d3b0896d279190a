package blockcheck_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/hcl"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/device"
	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/internal/blockcheck"
)

func deviceSchema(t *testing.T) *hclspec.Spec {
	t.Helper()
	schema, err := device.New(hclog.NewNullLogger(), "v0.0.1").ConfigSchema()
	must.NoError(t, err)
	return schema
}

// decode decodes a block as the doctor passes it to a plugin: read by HCL, as JSON.
func decode(t *testing.T, schema *hclspec.Spec, text string, into any) error {
	t.Helper()
	var block map[string]any
	must.NoError(t, hcl.Unmarshal([]byte(text), &block))
	encoded, err := json.Marshal(block)
	must.NoError(t, err)
	out := new(bytes.Buffer)
	code, asked := blockcheck.Check([]string{"plugin", blockcheck.Flag}, bytes.NewReader(encoded), out, schema, func(encoded []byte) error {
		return base.MsgPackDecode(encoded, into)
	})
	must.True(t, asked)
	if code != blockcheck.Right {
		must.Eq(t, blockcheck.Wrong, code)
		return errorText(strings.TrimSpace(out.String()))
	}
	return nil
}

type errorText string

func (e errorText) Error() string { return string(e) }

// What a plugin gets is what Nomad's own parser gives it.
func TestDecode_AsNomad(t *testing.T) {
	for name, text := range map[string]string{
		"nothing": ``,
		"some":    `slice_memory = "512MiB"` + "\n" + `ignored_gpu_ids = ["GPU-1"]` + "\n" + `max_slices = 3` + "\n" + `enabled = "false"`,
		"gpu blocks": `
			mode = "slice"
			gpu "index:0" { mode = "exclusive" }
			gpu "model:Tesla T4" {
			  mode     = "timeslice"
			  replicas = 4
			}`,
	} {
		t.Run("device: "+name, func(t *testing.T) {
			var want, got device.Config
			hclutils.NewConfigParser(deviceSchema(t)).ParseHCL(t, "config {\n"+text+"\n}", &want)
			must.NoError(t, decode(t, deviceSchema(t), text, &got))
			must.Eq(t, want, got)
		})
	}
	for name, text := range map[string]string{
		"nothing": ``,
		"blocks": `
			auth { helper = "x" }
			volumes { enabled = true }
			gc {
			  image_delay = "1h"
			  dangling_containers { period = "1m" }
			}
			pids_limit    = 17
			allow_caps    = ["all"]
			cdi_spec_dirs = ["/etc/cdi"]`,
	} {
		t.Run("driver: "+name, func(t *testing.T) {
			var want, got spec.Config
			hclutils.NewConfigParser(spec.ConfigSpec).ParseHCL(t, "config {\n"+text+"\n}", &want)
			must.NoError(t, decode(t, spec.ConfigSpec, text, &got))
			must.Eq(t, want, got)
		})
	}
}

func TestDecode_Errors(t *testing.T) {
	for text, says := range map[string]string{
		`slice_memmory = "1GiB"`:       "there is no option slice_memmory; there are ",
		`max_slices = "some"`:          "max_slices: it must be a number, got some",
		`ignored_gpu_ids = "GPU-1"`:    "ignored_gpu_ids: it must be a list of strings, got GPU-1",
		`enabled = "perhaps"`:          "enabled: it must be a bool, got perhaps",
		`driver_root = { path = "/" }`: "driver_root: it must be a string",
	} {
		var into device.Config
		must.ErrorContains(t, decode(t, deviceSchema(t), text, &into), says)
	}
	var into spec.Config
	must.ErrorContains(t, decode(t, spec.ConfigSpec, `gc { image_dellay = "1h" }`, &into), "block gc: there is no option image_dellay")
}

func TestCheck_OnlyWithTheFlag(t *testing.T) {
	_, asked := blockcheck.Check([]string{"plugin"}, nil, nil, nil, nil)
	must.False(t, asked)
}
