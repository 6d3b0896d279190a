package hooks

import (
	"testing"

	"github.com/shoenig/test/must"
)

func TestCreateContainer_ErrorNamesTheContainer(t *testing.T) {
	n := newNode(t)
	for flag, want := range map[string]string{
		"--shadow-dir=" + t.TempDir(): "shadow the driver copies in container c1: open the directory for driver copies",
		"--unlimited":                 "",
	} {
		status, stderr := n.hookWith(`{"id": "c1", "bundle": "`+n.bundle+`"}`, append(n.args("createContainer", "0123abcd"), flag)...)
		must.Eq(t, want != "", status != 0, must.Sprint(stderr))
		must.StrContains(t, stderr, want)
	}
}
