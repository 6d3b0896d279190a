package gpu

import (
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/runtime/request"
)

func TestCheckEnv_Requests(t *testing.T) {
	for name, tc := range map[string]struct {
		env  map[string]string
		want []string // none: nothing is refused
	}{
		"nothing":               {env: map[string]string{"PATH": "/bin", "TRANCHE_GPU_HOST_MEMORY": "1GiB"}},
		"taken back":            {env: map[string]string{request.MemoryEnv: "", request.GPUEnv: "", request.ComputeEnv: ""}},
		"an amount":             {map[string]string{request.MemoryEnv: "8GiB"}, []string{`TRANCHE_GPU_MEMORY = "8GiB"`}},
		"a GPU":                 {map[string]string{request.GPUEnv: "index:0"}, []string{`TRANCHE_GPU = "index:0"`, "constraint"}},
		"compute":               {map[string]string{request.ComputeEnv: "50%"}, []string{`TRANCHE_GPU_COMPUTE = "50%"`}},
		"a device of CDI's":     {map[string]string{"TRANCHE_CDI_SLICE_8GiB": "8GiB"}, []string{"TRANCHE_CDI_SLICE_8GiB"}},
		"nonsense":              {map[string]string{request.MemoryEnv: "lots"}, []string{`"lots"`}},
		"control characters":    {map[string]string{request.MemoryEnv: "8\x1b[2J\n"}, []string{`"8\x1b[2J\n"`}},
		"a megabyte":            {map[string]string{request.MemoryEnv: strings.Repeat("8", 1<<20)}, []string{`88"…`}},
		"an amount and a GPU":   {map[string]string{request.MemoryEnv: "1GiB", request.GPUEnv: "1"}, []string{`TRANCHE_GPU = "1" and TRANCHE_GPU_MEMORY`}},
		"one empty, one is not": {map[string]string{request.MemoryEnv: "", request.GPUEnv: "1"}, []string{`sets TRANCHE_GPU = "1":`}},
	} {
		t.Run(name, func(t *testing.T) {
			err := CheckEnv(&drivers.TaskConfig{Env: tc.env})
			if tc.want == nil {
				must.NoError(t, err)
				return
			}
			for _, want := range append(tc.want, `device "nvidia/slice"`, "env or template block") {
				must.ErrorContains(t, err, want)
			}
			must.Less(t, 600, len(err.Error()))
		})
	}
}

func TestMisspelledVariables(t *testing.T) {
	cfg := &drivers.TaskConfig{Env: map[string]string{"TRANCHE_GPU_HOSTMEMORY": "1GiB", "NOMAD_ALLOC_ID": "x", "TRANCHE_CLAIM_00c0ffee": "x"}}
	must.Eq(t, []string{`GPU: the environment variable "TRANCHE_GPU_HOSTMEMORY" has no meaning: did you mean TRANCHE_GPU_HOST_MEMORY?`},
		MisspelledVariables(cfg))
}
