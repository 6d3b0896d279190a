package layout

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
)

func TestLayout(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	gpus, err := Read(dir)
	must.NoError(t, err)
	must.MapEmpty(t, gpus)

	said := map[string]GPU{
		"GPU-1": {SliceBytes: 1 << 30}, "GPU-2": {Mode: claim.ModeExclusive}, "GPU-3": {Mode: claim.ModeMPS, SliceBytes: 2 << 30},
	}
	must.NoError(t, Write(dir, said))
	gpus, err = Read(dir)
	must.NoError(t, err)
	said["GPU-1"] = GPU{Mode: claim.ModeSlice, SliceBytes: 1 << 30}
	must.Eq(t, said, gpus)

	must.NoError(t, Write(dir, nil))
	gpus, err = Read(dir)
	must.NoError(t, err)
	must.MapEmpty(t, gpus)
	entries, err := os.ReadDir(dir)
	must.NoError(t, err)
	must.Len(t, 1, entries)
}

func TestLayout_Damaged(t *testing.T) {
	for name, tc := range map[string]struct{ content, want string }{
		"empty":           {"", "unexpected end"},
		"cut off":         {`{"tranche_layout": 1, "gp`, "unexpected end"},
		"of a later form": {`{"tranche_layout": 2, "gpus": {}}`, "its format is 2"},
		"an unknown mode": {`{"tranche_layout": 1, "gpus": {"GPU-1": {"mode": "quantum"}}}`, `GPU GPU-1: "quantum" is no mode`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			must.NoError(t, os.WriteFile(filepath.Join(dir, fileName), []byte(tc.content), 0o644))
			_, err := Read(dir)
			must.ErrorContains(t, err, tc.want)
			must.ErrorContains(t, err, "restart Nomad's agent")
		})
	}
}

// Whoever reads while others write sees what one of them wrote.
func TestLayout_WhileOthersWrite(t *testing.T) {
	dir := t.TempDir()
	said := []map[string]GPU{
		{"GPU-1": {Mode: claim.ModeExclusive}},
		{"GPU-1": {Mode: claim.ModeMIG}, "GPU-2": {Mode: claim.ModeSlice, SliceBytes: 1 << 30}},
	}
	must.NoError(t, Write(dir, said[0]))
	var writers sync.WaitGroup
	for _, gpus := range said {
		writers.Go(func() {
			for range 200 {
				must.NoError(t, Write(dir, gpus))
			}
		})
	}
	for range 400 {
		gpus, err := Read(dir)
		must.NoError(t, err)
		must.SliceContains(t, said, gpus)
	}
	writers.Wait()
}
