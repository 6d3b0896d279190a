package install

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// programs are where engines are installed.
var programs = map[string][]string{
	"docker":     {"/usr/bin/dockerd", "/usr/sbin/dockerd", "/usr/local/bin/dockerd"},
	"containerd": {"/usr/bin/containerd", "/usr/sbin/containerd", "/usr/local/bin/containerd"},
	"podman":     {"/usr/bin/podman", "/usr/local/bin/podman"},
}

// Program returns where an engine is installed, below a root, and where it would be if it is not.
func Program(engine, root string) (path string, found bool) {
	for _, program := range programs[engine] {
		path = filepath.Join(root, program)
		if _, err := os.Stat(path); err == nil {
			return path, true
		}
	}
	return filepath.Join(root, programs[engine][0]), false
}

// refuseAbsent returns an error if the file would be made for an engine that is not installed: its package comes later, and stops at
// a configuration that is there before. An engine elsewhere has a file that is named.
func refuseAbsent(engine string, o Options, f *file) error {
	program, found := Program(engine, "/")
	if _, err := exec.LookPath(filepath.Base(program)); found || err == nil || o.ConfigFile != "" || f.exists {
		return nil
	}
	return fmt.Errorf("%s is not installed (there is no %s): install it first, or name its configuration with --config; nothing was "+
		"changed", engine, program)
}
