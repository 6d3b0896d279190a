package spec

import (
	"testing"

	"github.com/shoenig/test/must"
)

func TestWithOOMScoreAdj(t *testing.T) {
	plugin := &Config{OOMScoreAdj: 300}
	must.Eq(t, 500, *apply(t, withOOMScoreAdj(&TaskConfig{OOMScoreAdj: 500}, plugin)).Process.OOMScoreAdj)
	must.Eq(t, 300, *apply(t, withOOMScoreAdj(&TaskConfig{}, plugin)).Process.OOMScoreAdj)
	must.Eq(t, 0, *apply(t, withOOMScoreAdj(&TaskConfig{}, &Config{})).Process.OOMScoreAdj)
}
