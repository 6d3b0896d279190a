package spec

import (
	"math"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
)

func TestWithUlimits(t *testing.T) {
	s := &Spec{Process: &specs.Process{Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 1024, Hard: 1024}}}}
	must.NoError(t, withUlimits(&TaskConfig{})(t.Context(), nil, nil, s))
	must.SliceEmpty(t, s.Process.Rlimits) // containerd's own, not the 1024 of its default spec

	s = apply(t, withUlimits(&TaskConfig{Ulimit: Pairs{{"nofile": "1024:4096"}, {"core": "0", "memlock": "-1"}}}))
	must.Eq(t, []specs.POSIXRlimit{
		{Type: "RLIMIT_CORE"},
		{Type: "RLIMIT_MEMLOCK", Soft: math.MaxUint64, Hard: math.MaxUint64},
		{Type: "RLIMIT_NOFILE", Soft: 1024, Hard: 4096},
	}, s.Process.Rlimits)
}
