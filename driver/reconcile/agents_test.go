package reconcile

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
)

func TestAgents_KnowsAllocsWhoseDirectoryIsGone(t *testing.T) {
	root, alloc, other := t.TempDir(), uuid.NewString(), uuid.NewString()
	dir := filepath.Join(root, alloc)
	must.NoError(t, os.Mkdir(dir, 0o755))
	var a Agents
	a.NoteTask(&drivers.TaskConfig{AllocDir: dir, AllocID: alloc})
	owned := func(want bool) {
		t.Helper()
		must.Eq(t, want, a.ownsAlloc(alloc))
		must.False(t, a.ownsAlloc(other))
	}
	a.forgetAllocs(0)
	owned(true)
	must.NoError(t, os.Remove(dir))
	a.forgetAllocs(0) // finds it gone
	owned(true)
	a.forgetAllocs(time.Hour)
	owned(true)
	a.forgetAllocs(0)
	owned(false)
}
