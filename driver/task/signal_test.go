package task

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/shoenig/test/must"
)

func TestParseSignal(t *testing.T) {
	cases := []struct {
		in   string
		want syscall.Signal
	}{
		{"SIGTERM", syscall.SIGTERM}, {"term", syscall.SIGTERM}, {"KILL", syscall.SIGKILL}, {"10", syscall.SIGUSR1}, {"RTMIN+1", 35},
		{"", 0}, {"0", 0}, {"65", 0}, {"-1", 0}, {"SIGNONE", 0},
	}
	for _, c := range cases {
		t.Run(fmt.Sprintf("%q", c.in), func(t *testing.T) {
			got, err := parseSignal(c.in)
			must.Eq(t, c.want, got)
			must.Eq(t, c.want == 0, err != nil)
		})
	}
}
