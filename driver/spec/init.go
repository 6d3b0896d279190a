package spec

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/pkg/oci"

	"github.com/tranche-gpu/tranche/driver/storage"
)

// initInContainer is where a task's init lies in its container: at the root, which every image has, under a name that no
// image uses.
const initInContainer = "/.tranche-init"

// Which programs the option init looks for, in this order, and where they may be besides PATH: packages of Docker and
// Podman put theirs there.
var (
	usualInits = []string{"tini-static", "docker-init", "catatonit", "tini"}
	initDirs   = []string{"/usr/libexec/docker", "/usr/libexec/podman", "/usr/lib/podman", "/usr/libexec/catatonit"}
)

// withInit makes the host's init program the container's first process, and the task's command its child: it reaps
// orphaned processes, and passes signals on. What stands before "--" would be its own options; all of usualInits accept it.
func withInit(program string) oci.SpecOpts {
	return specOption(func(s *Spec) error {
		if program == "" {
			return nil
		}
		s.Mounts = append(s.Mounts, storage.Bind(program, initInContainer, "rprivate", true))
		s.Process.Args = append([]string{initInContainer, "--"}, s.Process.Args...)
		return nil
	})
}

// InitProgram returns the host's program for the option init; empty for a task without.
func (c *TaskConfig) InitProgram(plugin *Config) (string, error) {
	switch {
	case !c.Init:
		return "", nil
	case plugin.InitPath != "":
		return plugin.InitPath, plugin.checkInit()
	}
	var unfit []error
	for _, name := range usualInits {
		for _, file := range initCandidates(name) {
			err := checkStatic(file)
			if err == nil {
				return file, nil
			}
			if !errors.Is(err, fs.ErrNotExist) {
				unfit = append(unfit, err)
			}
		}
	}
	err := fmt.Errorf("option init = true: this node has no init program for containers: looked for %s on PATH and in %s; "+
		"install one, such as tini-static of Debian's package tini, or name one with the plugin's init_path",
		strings.Join(usualInits, ", "), strings.Join(initDirs, ", "))
	return "", errors.Join(append([]error{err}, unfit...)...)
}

// initCandidates returns the files that a usual init of this name may be.
func initCandidates(name string) []string {
	var files []string
	if file, err := exec.LookPath(name); err == nil {
		files = append(files, file)
	}
	for _, dir := range initDirs {
		files = append(files, filepath.Join(dir, name))
	}
	return files
}

// checkStatic makes sure that a program of the host's runs in any image. One that is linked against shared libraries
// would find the image's, or none.
func checkStatic(file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return fmt.Errorf("%s is not an executable file", file)
	}
	program, err := elf.Open(file)
	if err != nil {
		return fmt.Errorf("%s is not a program that the kernel starts by itself (%w)", file, err)
	}
	defer program.Close()
	for _, segment := range program.Progs {
		if segment.Type == elf.PT_INTERP {
			return fmt.Errorf("%s is linked against shared libraries, which images do not have: it must be linked "+
				"statically", file)
		}
	}
	return nil
}

// checkInit checks the task's option init.
func (c *TaskConfig) checkInit() error {
	if c.Init && c.PidMode == "host" {
		return errors.New("option init = true: with pid_mode = \"host\" the task has no first process that could be an " +
			"init; leave one of the two out")
	}
	return nil
}

// checkInit checks the plugin's option init_path.
func (c *Config) checkInit() error {
	if c.InitPath == "" {
		return nil
	}
	if err := checkStatic(c.InitPath); err != nil {
		return fmt.Errorf("plugin option init_path = %q: %w; it may be tini-static, docker-init or catatonit", c.InitPath, err)
	}
	return nil
}
