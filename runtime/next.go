package runtime

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// defaultRuntimes are looked for, in this order, where the configuration names none.
var defaultRuntimes = []string{"runc", "crun"}

// usualPath is searched where the caller gives us no PATH: the directories in which packages put OCI runtimes.
const usualPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// nextRuntime finds the runtime to become: the first of those configured that is installed. It goes by the name that the
// configuration gives it, as it would from a shell: runtimes put that into their messages.
func nextRuntime(names []string, path string) (file, name string, err error) {
	var failures []error
	for _, name := range names {
		file, err := lookPath(name, path)
		if err == nil {
			return file, name, refuseSelf(file)
		}
		failures = append(failures, err)
	}
	return "", "", fmt.Errorf("find the next OCI runtime: %w; install it, or set runtime in the configuration of "+
		"tranche-runtime to where it is", errors.Join(failures...))
}

// lookPath is exec.LookPath for the PATH that we were given, which may be none.
func lookPath(name, path string) (string, error) {
	if path != "" || strings.Contains(name, "/") {
		return exec.LookPath(name)
	}
	for _, dir := range filepath.SplitList(usualPath) {
		if file, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return file, nil
		}
	}
	return "", fmt.Errorf("%q: %w in %s", name, exec.ErrNotFound, usualPath)
}

// refuseSelf keeps us from becoming ourselves for ever.
func refuseSelf(next string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the next OCI runtime: %w", err)
	}
	if sameFile(self, next) {
		return fmt.Errorf("find the next OCI runtime: %s is tranche-runtime itself; set runtime in its configuration "+
			"to runc or crun", next)
	}
	return nil
}
