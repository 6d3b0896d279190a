// Package ociruntime selects containerd's shim and the OCI runtime behind it. It refuses versions of crun where they would
// harm the node, and runs nothing itself.
package ociruntime

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/containerd/containerd/api/types/runc/options"

	"github.com/tranche-gpu/tranche/driver/userns"
)

// Runc is containerd's name for the shim of runc and of runtimes with the same command line, such as crun.
const Runc = "io.containerd.runc.v2"

// Runtime is what runs containers. Make one with Parse.
type Runtime struct {
	// Name is how the operator or the jobspec writes it.
	Name string
	// Shim is containerd's name for the shim.
	Shim string
	// Program is the OCI runtime behind the shim; empty means the shim's own, which is runc, or that it has none.
	Program string
}

// forms says what the name of a runtime may be.
const forms = `it may be the name of an OCI runtime on PATH ("runc", "crun"), its absolute path, or a containerd ` +
	`shim ("io.containerd.kata.v2")`

var (
	programName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]*$`)
	shimName    = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+$`)
)

// Parse returns the runtime of a name. "runc" is what the shim Runc runs by itself.
func Parse(name string) (Runtime, error) {
	switch {
	case name == "runc", name == Runc:
		return Runtime{Name: name, Shim: Runc}, nil
	case filepath.IsAbs(name), programName.MatchString(name):
		return Runtime{Name: name, Shim: Runc, Program: name}, nil
	case shimName.MatchString(name):
		return Runtime{Name: name, Shim: name}, nil
	}
	return Runtime{}, fmt.Errorf("this is no name of a runtime; %s", forms)
}

// Installed returns the runtime with the path of its program, and an error if that is not on this node. A shim would look for
// a name on containerd's PATH, and its error would say less.
func (r Runtime) Installed() (Runtime, error) {
	if r.Program == "" {
		return r, nil
	}
	program, err := exec.LookPath(r.Program)
	if err != nil {
		return r, fmt.Errorf("it is not installed on this node: %w; PATH is %q", err, os.Getenv("PATH"))
	}
	r.Program = program
	return r, nil
}

// Same reports whether two names mean the same runtime.
func (r Runtime) Same(other Runtime) bool { return r.Shim == other.Shim && r.Program == other.Program }

// Options returns what the shims of runc and its like take; nil for others, which take none.
//
// They leave SystemdCgroup unset: the container's cgroup is named by its path, as Nomad names it, and Nomad makes its own
// without systemd.
func (r Runtime) Options(owner userns.IOOwner) any {
	if strings.HasPrefix(r.Shim, "io.containerd.runc.") {
		return &options.Options{BinaryName: r.Program, IoUid: owner.UID, IoGid: owner.GID}
	}
	return nil
}

// ShimProgram returns the program that containerd starts for the shim, after the last two parts of its name.
func (r Runtime) ShimProgram() string {
	parts := strings.Split(r.Shim, ".")
	if len(parts) < 2 {
		return r.Shim
	}
	return "containerd-shim-" + strings.Join(parts[len(parts)-2:], "-")
}
