package driver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/containerd/api/types/runc/options"

	"github.com/tranche-gpu/tranche/driver/userns"
)

// ociRuntime is what runs containers: a shim of containerd's, and for the shim of runc and its like the program that it
// calls.
type ociRuntime struct {
	// name is how the operator or the jobspec writes it.
	name string
	// shim is containerd's name for the shim.
	shim string
	// program is the OCI runtime behind the shim; empty means the shim's own, which is runc, or that it has none.
	program string
}

// runtimeForms says what the name of a runtime may be.
const runtimeForms = `it may be the name of an OCI runtime on PATH ("runc", "crun"), its absolute path, or a containerd ` +
	`shim ("io.containerd.kata.v2")`

var (
	programName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]*$`)
	shimName    = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+$`)
)

// withSpecVersion says by which version of OCI's specification a container's spec is to be read. crun up to 1.8 refuses
// any after 1.0, and what later ones added is for no runtime to be refused over.
var withSpecVersion = specOption(func(s *Spec) error {
	s.Version = "1.0.2"
	return nil
})

// parseRuntime tells the forms of a runtime's name apart. "runc" is what the default shim runs by itself.
func parseRuntime(name string) (ociRuntime, error) {
	switch {
	case name == "runc", name == defaultRuntime:
		return ociRuntime{name: name, shim: defaultRuntime}, nil
	case filepath.IsAbs(name), programName.MatchString(name):
		return ociRuntime{name: name, shim: defaultRuntime, program: name}, nil
	case shimName.MatchString(name):
		return ociRuntime{name: name, shim: name}, nil
	}
	return ociRuntime{}, fmt.Errorf("this is no name of a runtime; %s", runtimeForms)
}

// same says whether two names mean the same runtime.
func (r ociRuntime) same(other ociRuntime) bool {
	return r.shim == other.shim && r.program == other.program
}

// options are what the shims of runc and its like take; others get none.
//
// They leave SystemdCgroup unset: the container's cgroup is named by its path, as Nomad names it, and Nomad makes its own
// without systemd.
func (r ociRuntime) options(owner userns.IOOwner) any {
	if strings.HasPrefix(r.shim, "io.containerd.runc.") {
		return &options.Options{BinaryName: r.program, IoUid: owner.UID, IoGid: owner.GID}
	}
	return nil
}

// shimProgram is the program that containerd starts for the shim, after the last two parts of its name.
func (r ociRuntime) shimProgram() string {
	parts := strings.Split(r.shim, ".")
	if len(parts) < 2 {
		return r.shim
	}
	return "containerd-shim-" + strings.Join(parts[len(parts)-2:], "-")
}

// runtime is the runtime of the task, by the path of its program: a shim would look for a name on containerd's PATH, and
// its error would say less.
func (c *TaskConfig) runtime(plugin *Config) (ociRuntime, error) {
	name, option := c.Runtime, "option runtime"
	if name == "" {
		name, option = plugin.Runtime, "plugin option runtime"
	}
	r, err := parseRuntime(name)
	if err != nil {
		return r, fmt.Errorf("%s = %q: %w", option, name, err)
	}
	if r.program == "" {
		return r, nil
	}
	if r.program, err = exec.LookPath(r.program); err != nil {
		return r, fmt.Errorf("%s = %q: it is not installed on this node: %w; PATH is %q", option, name, err,
			os.Getenv("PATH"))
	}
	return r, nil
}

// checkRuntime checks the option runtime.
func (c *TaskConfig) checkRuntime(plugin *Config) error {
	if c.Runtime == "" {
		return nil
	}
	if _, err := parseRuntime(c.Runtime); err != nil {
		return fmt.Errorf("option runtime = %q: %w", c.Runtime, err)
	}
	if !plugin.allows(c.Runtime) {
		return fmt.Errorf("option runtime = %q: this node allows %q; the operator can allow more with the plugin's "+
			"allow_runtimes", c.Runtime, plugin.runtimes())
	}
	return nil
}

// runtimes are the names of the runtimes that tasks may have.
func (c *Config) runtimes() []string { return append([]string{c.Runtime}, c.AllowRuntimes...) }

// allows says whether a task may name the runtime.
func (c *Config) allows(name string) bool {
	asked, err := parseRuntime(name)
	return err == nil && slices.ContainsFunc(c.runtimes(), func(allowed string) bool {
		r, err := parseRuntime(allowed)
		return err == nil && r.same(asked)
	})
}

// checkRuntimes checks the names of runtimes in the plugin's configuration.
func (c *Config) checkRuntimes() error {
	if _, err := parseRuntime(c.Runtime); err != nil {
		return fmt.Errorf("plugin option runtime = %q: %w", c.Runtime, err)
	}
	for _, name := range c.AllowRuntimes {
		if _, err := parseRuntime(name); err != nil {
			return fmt.Errorf("plugin option allow_runtimes: %q: %w", name, err)
		}
	}
	return nil
}
