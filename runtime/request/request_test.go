package request

import (
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime/compute"
	"github.com/tranche-gpu/tranche/runtime/gpuinfo"
)

func TestParse(t *testing.T) {
	const gib = 1 << 30
	for name, tc := range map[string]struct {
		env, annotations map[string]string
		want             Request
		none             bool
	}{
		"nothing":            {none: true},
		"others' variables":  {env: map[string]string{"TRANCHE_GPU_HOST_MEMORY": "1GiB", "TRANCHE_GPUS": "2"}, none: true},
		"others' annotation": {annotations: map[string]string{"dev.tranche.nomad/driver": "x"}, none: true},
		"empty ones": {
			env:         map[string]string{MemoryEnv: "", GPUEnv: "", ComputeEnv: "", "TRANCHE_CDI_SLICE_8GiB": ""},
			annotations: map[string]string{MemoryAnnotation: "", GPUAnnotation: "", ComputeAnnotation: ""}, none: true,
		},
		"the environment":   {env: map[string]string{MemoryEnv: "8GiB"}, want: Request{MemoryBytes: 8 * gib}},
		"an annotation":     {annotations: map[string]string{MemoryAnnotation: "8 GiB"}, want: Request{MemoryBytes: 8 * gib}},
		"a CDI device":      {env: map[string]string{"TRANCHE_CDI_SLICE_8GiB": "8GiB"}, want: Request{MemoryBytes: 8 * gib}},
		"less than a slice": {env: map[string]string{MemoryEnv: "512MiB"}, want: Request{MemoryBytes: gib / 2}},
		"all of them, alike": {
			env:         map[string]string{MemoryEnv: "8GiB", "TRANCHE_CDI_SLICE_8GiB": "8GiB", GPUEnv: "3"},
			annotations: map[string]string{MemoryAnnotation: "8192MiB", GPUAnnotation: "index:3"},
			want:        Request{MemoryBytes: 8 * gib, GPU: gpuOf(t, "3")},
		},
		"memory here, GPU there": {
			env: map[string]string{MemoryEnv: "1GiB"}, annotations: map[string]string{GPUAnnotation: "GPU-1"},
			want: Request{MemoryBytes: gib, GPU: gpuOf(t, "GPU-1")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, requested, err := Parse(tc.env, tc.annotations)
			must.NoError(t, err)
			must.Eq(t, !tc.none, requested)
			must.Eq(t, tc.want, got)
		})
	}
}

func TestParse_Refuses(t *testing.T) {
	long := strings.Repeat("8", 1<<20)
	for name, tc := range map[string]struct {
		env, annotations map[string]string
		want             []string
	}{
		"no amount": {
			env: map[string]string{MemoryEnv: "lots"}, want: []string{"environment variable TRANCHE_GPU_MEMORY", `"lots" is not an amount`},
		},
		"nothing": {env: map[string]string{MemoryEnv: "0"}, want: []string{MemoryEnv, "not a multiple of 2MiB"}},
		"an amount without a unit": {
			annotations: map[string]string{MemoryAnnotation: "8"}, want: []string{"annotation dev.tranche/gpu-memory", "unit"},
		},
		"two amounts": {
			env: map[string]string{MemoryEnv: "8GiB"}, annotations: map[string]string{MemoryAnnotation: "4GiB"},
			want: []string{
				"two different things", `environment variable TRANCHE_GPU_MEMORY = "8GiB"`, `annotation dev.tranche/gpu-memory = "4GiB"`,
			},
		},
		"a CDI device and another amount": {
			env:  map[string]string{MemoryEnv: "8GiB", "TRANCHE_CDI_SLICE_4GiB": "4GiB"},
			want: []string{"two different things", `CDI device tranche.dev/slice = "4GiB"`},
		},
		"two CDI devices": {
			env:  map[string]string{"TRANCHE_CDI_SLICE_8GiB": "8GiB", "TRANCHE_CDI_SLICE_4GiB": "4GiB"},
			want: []string{"two different things"},
		},
		"two GPUs": {
			env: map[string]string{MemoryEnv: "8GiB", GPUEnv: "1"}, annotations: map[string]string{GPUAnnotation: "2"},
			want: []string{"two different things", `TRANCHE_GPU = "1"`, `dev.tranche/gpu = "2"`},
		},
		"a GPU, but no memory":     {env: map[string]string{GPUEnv: "1"}, want: []string{"set TRANCHE_GPU_MEMORY too"}},
		"a megabyte":               {env: map[string]string{MemoryEnv: long}, want: []string{"1048576 bytes long"}},
		"a megabyte of annotation": {annotations: map[string]string{GPUAnnotation: long}, want: []string{"1048576 bytes long"}},
		"a megabyte by CDI":        {env: map[string]string{"TRANCHE_CDI_SLICE_": long}, want: []string{"1048576 bytes long"}},
		"no UTF-8":                 {env: map[string]string{MemoryEnv: "8GiB\xff"}, want: []string{"not valid UTF-8"}},
		"no UTF-8, read as JSON":   {env: map[string]string{GPUEnv: "model:\ufffd"}, want: []string{"not valid UTF-8"}},
		"control characters":       {env: map[string]string{MemoryEnv: "8GiB\x1b[2J\n"}, want: []string{`\x1b[2J\n`}},
	} {
		t.Run(name, func(t *testing.T) {
			_, requested, err := Parse(tc.env, tc.annotations)
			must.False(t, requested)
			must.Error(t, err)
			for _, want := range tc.want {
				must.StrContains(t, err.Error(), want)
			}
			must.Less(t, 1000, len(err.Error()), must.Sprint("an error of anybody's length"))
			must.StrNotContains(t, err.Error(), "\x1b")
		})
	}
}

func TestParseCompute(t *testing.T) {
	for name, tc := range map[string]struct {
		env, annotations map[string]string
		want             compute.Request
		err              string
	}{
		"nothing":       {env: map[string]string{ComputeEnv: "", MemoryEnv: "8GiB"}},
		"a share":       {env: map[string]string{ComputeEnv: "share=30"}, want: compute.Request{Share: 300}},
		"an annotation": {annotations: map[string]string{ComputeAnnotation: "max=50%, priority=high"}, want: compute.Request{Max: 500, Class: claim.ClassHigh}},
		"both, alike": {env: map[string]string{ComputeEnv: "max=50,share=30"},
			annotations: map[string]string{ComputeAnnotation: "share=30,max=50"}, want: compute.Request{Share: 300, Max: 500}},
		"two of them": {env: map[string]string{ComputeEnv: "share=30"}, annotations: map[string]string{ComputeAnnotation: "share=40"},
			err: "two different things"},
		"a number":      {env: map[string]string{ComputeEnv: "50"}, err: `environment variable TRANCHE_GPU_COMPUTE: "50" is none of share, max and priority`},
		"no percent":    {env: map[string]string{ComputeEnv: "share=half"}, err: `environment variable TRANCHE_GPU_COMPUTE: share: must be a number of percent`},
		"no class":      {annotations: map[string]string{ComputeAnnotation: "priority=urgent"}, err: `annotation dev.tranche/gpu-compute: priority: "urgent"`},
		"twice":         {env: map[string]string{ComputeEnv: "share=30,share=40"}, err: "share is stated twice"},
		"more than max": {env: map[string]string{ComputeEnv: "share=60,max=50"}, err: "more than the ceiling max, 50%"},
		"a megabyte":    {env: map[string]string{ComputeEnv: strings.Repeat("8", 1<<20)}, err: "1048576 bytes long"},
	} {
		t.Run(name, func(t *testing.T) {
			got, where, err := ParseCompute(tc.env, tc.annotations)
			if tc.err != "" {
				must.ErrorContains(t, err, tc.err)
				must.Less(t, 1000, len(err.Error()))
				return
			}
			must.NoError(t, err)
			must.Eq(t, tc.want, got)
			must.Eq(t, got.Stated(), where != "")
		})
	}
}

func TestPolicy(t *testing.T) {
	plain := map[string]string{MemoryEnv: "8GiB"}
	nomads := map[string]string{MemoryEnv: "8GiB", "NOMAD_ALLOC_ID": "1"}
	for _, text := range []string{"", "on", "always", "off"} {
		p, err := ParsePolicy(text)
		must.NoError(t, err)
		must.Eq(t, p != Off, p.Allow(plain) == nil, must.Sprint(text))
		must.Eq(t, p == Always, p.Allow(nomads) == nil, must.Sprint(text))
	}
	must.ErrorContains(t, Off.Allow(plain), `local_claims = "on"`)
	must.ErrorContains(t, On.Allow(nomads), `device "nvidia/slice"`)
	must.ErrorContains(t, On.Allow(nomads), "by TRANCHE_GPU_MEMORY;")
	// A job can empty a variable of Nomad's, and remove some of them.
	must.Error(t, On.Allow(map[string]string{"NOMAD_ALLOC_ID": ""}))
	must.ErrorContains(t, On.Allow(map[string]string{"NOMAD_TASK_DIR": "/local"}), "by annotations;")
	_, err := ParsePolicy("maybe")
	must.ErrorContains(t, err, `"maybe" is none of "on", "always" and "off"`)
}

func TestIsVariable(t *testing.T) {
	for _, name := range []string{MemoryEnv, GPUEnv, ComputeEnv, "TRANCHE_CDI_SLICE_8GiB"} {
		must.True(t, IsVariable(name), must.Sprint(name))
	}
	for _, name := range []string{"TRANCHE_GPU_HOST_MEMORY", "TRANCHE_GPUS", "PATH", ""} {
		must.False(t, IsVariable(name), must.Sprint(name))
	}
}

func FuzzParse(f *testing.F) {
	f.Add("8GiB", "0", "", "", "", "")
	f.Add("8GiB", "", "", "8192MiB", "model:*", "8GiB")
	f.Add("", "", "50%", "4GiB", "", "")
	f.Add("\xff", "index:1", "", "", "uuid:GPU-1", "1TiB")
	f.Add("99999999999999999999GiB", "", "", "", "", "")
	f.Fuzz(func(t *testing.T, memory, gpu, computeText, memoryAnnotation, gpuAnnotation, device string) {
		request, requested, err := Parse(
			map[string]string{MemoryEnv: memory, GPUEnv: gpu, ComputeEnv: computeText, "TRANCHE_CDI_SLICE_x": device},
			map[string]string{MemoryAnnotation: memoryAnnotation, GPUAnnotation: gpuAnnotation})
		part, _, computeErr := ParseCompute(map[string]string{ComputeEnv: computeText}, nil)
		must.True(t, computeErr != nil || part.Stated() == (computeText != ""), must.Sprint("a part was ignored"))
		switch {
		case err != nil:
			must.False(t, requested)
			must.Less(t, 2000, len(err.Error()))
		case requested:
			must.Positive(t, request.MemoryBytes)
			must.Zero(t, request.MemoryBytes%(2<<20))
			must.Eq(t, gpu+gpuAnnotation == "", request.GPU == gpuinfo.Selector{})
		default:
			must.Eq(t, "", memory+gpu+memoryAnnotation+gpuAnnotation+device, must.Sprint("a request was ignored"))
		}
	})
}
