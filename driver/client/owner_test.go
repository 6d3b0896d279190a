package client

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/internal/proc"
	"github.com/tranche-gpu/tranche/internal/proc/proctest"
)

func TestOwnerDied(t *testing.T) {
	self, err := thisOwner()
	must.NoError(t, err)
	must.False(t, OwnerDied(self))

	boot, err := proc.BootID()
	must.NoError(t, err)
	namespace, err := pidNamespace()
	must.NoError(t, err)
	ended := exec.Command("true")
	must.NoError(t, ended.Run())
	living := proctest.Sleeper(t)
	cases := []struct {
		name  string
		owner string
		died  bool
	}{
		{"lives", fmt.Sprintf("%s/%s/%d/%d", boot, namespace, living.PID, living.StartTime), false},
		{"has ended", fmt.Sprintf("%s/%s/%d/%d", boot, namespace, ended.Process.Pid, 1), true},
		{"had the ID of another", fmt.Sprintf("%s/%s/%d/%d", boot, namespace, living.PID, living.StartTime-1), true},
		{"of an earlier boot", fmt.Sprintf("other/%s/%d/%d", namespace, living.PID, living.StartTime), true},
		{"of another PID namespace", fmt.Sprintf("%s/pid:[1]/%d/%d", boot, ended.Process.Pid, 1), false},
		{"of another version", "JOW5NWQ3CKMB4ZUX", false},
		{"none", "", false},
		{"no number", fmt.Sprintf("%s/%s/one/1", boot, namespace), false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { must.Eq(t, c.died, OwnerDied(c.owner)) })
	}
}
