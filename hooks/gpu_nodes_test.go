package hooks

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
)

func TestRefuseOtherGPUs(t *testing.T) {
	own := []string{"/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap12"}
	cases := []struct {
		name  string
		nodes []string
		other string // "" where the container is fine
	}{
		{"no nodes", nil, ""},
		{"its own", []string{"nvidiactl", "nvidia0", "nvidia-caps/nvidia-cap12", "fuse", "nv"}, ""},
		{"another GPU", []string{"nvidiactl", "nvidia0", "nvidia1"}, "/dev/nvidia1"},
		{"unified memory that was not asked for", []string{"nvidia-uvm"}, "/dev/nvidia-uvm"},
		{"another MIG instance", []string{"nvidia-caps/nvidia-cap12", "nvidia-caps/nvidia-cap21"}, "/dev/nvidia-caps/nvidia-cap21"},
		{"a node of a driver to come", []string{"nvidia_next"}, "/dev/nvidia_next"},
		{"a memory channel", []string{"nvidia-caps-imex-channels/channel0"}, "/dev/nvidia-caps-imex-channels/channel0"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			for _, node := range tc.nodes {
				file := filepath.Join(dir, "dev", node)
				must.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
				must.NoError(t, os.WriteFile(file, nil, 0o644))
			}
			root, err := os.OpenRoot(dir)
			must.NoError(t, err)
			defer root.Close()
			err = refuseOtherGPUs(root, own)
			if tc.other == "" {
				must.NoError(t, err)
				return
			}
			for _, named := range []string{tc.other + ",", "/dev/nvidiactl, /dev/nvidia0", "nvidia-container-runtime"} {
				must.ErrorContains(t, err, named)
			}
		})
	}
}

// A /dev that leads out of the container is an error, and nothing outside is looked at.
func TestRefuseOtherGPUs_LinkOut(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, os.Symlink("/dev", filepath.Join(dir, "dev")))
	root, err := os.OpenRoot(dir)
	must.NoError(t, err)
	defer root.Close()
	must.ErrorContains(t, refuseOtherGPUs(root, nil), "path escapes")
}
