package runtime

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/tranche-gpu/tranche/runtime/rootfs"
)

// sayWhatLacks says in one line what keeps the programs of an image from finding the GPU, and starts the container all
// the same. The line goes to the caller's log and to the standard error: a container without a terminal has its own for
// that of the runtime that creates it, so `docker run` and `docker logs` show it. For people, hence no error of its own.
func (inv invocation) sayWhatLacks(file *specFile, stderr io.Writer) {
	dir := inv.rootDir(file)
	if dir == "" {
		return
	}
	line, err := rootfs.LacksIn(dir)
	if err != nil || line == "" {
		return
	}
	fmt.Fprintf(stderr, "tranche-runtime: %s\n", line)
	_ = inv.logLine("warning", line)
}

// rootDir is the path of the container's root file system on the host; empty for a spec that names none.
func (inv invocation) rootDir(file *specFile) string {
	if file.spec.Root == nil || file.spec.Root.Path == "" {
		return ""
	}
	if filepath.IsAbs(file.spec.Root.Path) {
		return file.spec.Root.Path
	}
	return filepath.Join(inv.bundle, file.spec.Root.Path)
}
