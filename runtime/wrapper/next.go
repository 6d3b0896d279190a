package wrapper

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// usualPath is searched if the caller sets no PATH: the directories in which packages install OCI runtimes.
const usualPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// nextRuntime finds the first of the configured runtimes that is installed. It returns its path, and its name in the
// configuration, which becomes argv[0]: runtimes put that into their messages.
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

// lookPath is exec.LookPath, which also works without a PATH.
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

// refuseSelf returns an error if the next runtime is tranche-runtime itself, which would become itself forever.
func refuseSelf(next string) error {
	info, err := os.Stat("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("find the next OCI runtime: %w", err)
	}
	if nextInfo, err := os.Stat(next); err == nil && os.SameFile(info, nextInfo) {
		return fmt.Errorf("find the next OCI runtime: %s is tranche-runtime itself; set runtime in its configuration "+
			"to runc or crun", next)
	}
	return nil
}
