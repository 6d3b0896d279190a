package spec

import (
	"testing"

	"github.com/shoenig/test/must"
)

func TestWithPidsLimit(t *testing.T) {
	cases := []struct{ task, plugin, want int64 }{{0, 0, 0}, {0, 50, 50}, {20, 50, 20}, {20, 0, 20}, {-1, 0, 0}}
	for _, c := range cases {
		s := apply(t, withPidsLimit(&TaskConfig{PidsLimit: c.task}, &Config{PidsLimit: c.plugin}))
		if c.want == 0 {
			must.Nil(t, s.Linux.Resources)
			continue
		}
		must.Eq(t, c.want, *s.Linux.Resources.Pids.Limit)
	}
}
