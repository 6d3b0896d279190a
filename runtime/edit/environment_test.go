package edit

import (
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
)

func TestEnvironment(t *testing.T) {
	cases := []struct {
		name      string
		env, want []string
	}{{
		name: "tokens go",
		env:  []string{"A=1", "TRANCHE_CLAIM_0123abcd=secret", "TRANCHE_CLAIM_ffffffff=secret", "B=2"},
		want: []string{"A=1", "B=2", "NVIDIA_VISIBLE_DEVICES=void"},
	}, {
		name: "only one word on visible devices",
		env:  []string{"NVIDIA_VISIBLE_DEVICES=all", "A=1", "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES_X=1"},
		want: []string{"A=1", "NVIDIA_VISIBLE_DEVICES_X=1", "NVIDIA_VISIBLE_DEVICES=void"},
	}, {
		name: "the job's own stays",
		env:  []string{"LD_PRELOAD=/job/own.so", "CUDA_VISIBLE_DEVICES=0", "odd"},
		want: []string{"LD_PRELOAD=/job/own.so", "CUDA_VISIBLE_DEVICES=0", "odd", "NVIDIA_VISIBLE_DEVICES=void"},
	}, {
		name: "a token without a value",
		env:  []string{"TRANCHE_CLAIM_0123abcd"},
		want: []string{"NVIDIA_VISIBLE_DEVICES=void"},
	}}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			spec := &specs.Spec{Process: &specs.Process{Env: tc.env}}
			must.NoError(t, Environment{}.Modify(spec))
			must.Eq(t, tc.want, spec.Process.Env)
		})
	}
}
