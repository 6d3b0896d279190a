package spec

import (
	"testing"

	"github.com/shoenig/test/must"
)

func TestWithTTY(t *testing.T) {
	s := apply(t, withTTY(true))
	must.True(t, s.Process.Terminal)
	must.Eq(t, []string{"TERM=xterm"}, s.Process.Env)
	must.Eq(t, []string{"TERM=dumb"}, AddTerm([]string{"TERM=dumb"}))
	must.False(t, apply(t, withTTY(false)).Process.Terminal)
}
