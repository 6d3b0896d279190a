package wrapper

import (
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"

	"github.com/tranche-gpu/tranche/runtime/request"
	"github.com/tranche-gpu/tranche/runtime/rootfs"
)

// warnAboutImage writes a line if the image lacks what programs need to find the GPU; the container starts all the same. The
// line goes to the log and to the standard error, which `docker run` and `docker logs` show for containers without a
// terminal.
func (inv invocation) warnAboutImage(file *specFile, stderr io.Writer) {
	dir := inv.rootDir(file)
	if dir == "" {
		return
	}
	line, err := rootfs.LacksIn(dir)
	if err != nil || line == "" {
		return
	}
	inv.warn(stderr, line)
}

// warnAboutVariables writes a line for each environment variable that looks like a request and is none.
func (inv invocation) warnAboutVariables(file *specFile, stderr io.Writer) {
	for _, line := range request.Misspelled(slices.Collect(maps.Keys(file.environment()))) {
		inv.warn(stderr, line)
	}
}

func (inv invocation) warn(stderr io.Writer, line string) {
	fmt.Fprintf(stderr, "tranche-runtime: %s\n", line)
	_ = inv.logLine("warning", line)
}

// rootDir returns the path of the container's root file system on the host, or "" if the spec names none.
func (inv invocation) rootDir(file *specFile) string {
	if file.spec.Root == nil || file.spec.Root.Path == "" {
		return ""
	}
	if filepath.IsAbs(file.spec.Root.Path) {
		return file.spec.Root.Path
	}
	return filepath.Join(inv.bundle, file.spec.Root.Path)
}
