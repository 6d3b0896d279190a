package install

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// OldPlugins returns those of Nomad's plugins of which a process runs another program than the plugin directory has now: an upgrade
// has replaced it, and the agent was not restarted since.
func OldPlugins(pluginDir string) ([]string, error) {
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	var old []string
	for _, name := range nomadPlugins {
		path := filepath.Join(pluginDir, name)
		for _, file := range commands {
			process := filepath.Dir(file)
			if !runsAs(process, path) {
				continue
			}
			same, err := sameContent(filepath.Join(process, "exe"), path)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
				continue // it has ended, or the plugin was removed
			}
			if err != nil {
				return nil, fmt.Errorf("compare the plugin %s with what its process runs: %w", path, err)
			}
			if !same {
				old = append(old, name)
				break
			}
		}
	}
	return old, nil
}

// runsAs reports whether a process, a directory below /proc, was started by a path. What a container's process says of itself does
// not count.
func runsAs(process, path string) bool {
	command, err := os.ReadFile(filepath.Join(process, "cmdline"))
	if program, _, _ := strings.Cut(string(command), "\x00"); err != nil || program != path {
		return false
	}
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return false
	}
	its, err := os.Readlink(filepath.Join(process, "ns/mnt"))
	return err == nil && its == own
}

// sameContent reports whether two files have the same content.
func sameContent(a, b string) (bool, error) {
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	if err := errors.Join(errA, errB); err != nil || os.SameFile(infoA, infoB) || infoA.Size() != infoB.Size() {
		return err == nil && os.SameFile(infoA, infoB), err
	}
	textA, errA := os.ReadFile(a)
	textB, errB := os.ReadFile(b)
	return bytes.Equal(textA, textB), errors.Join(errA, errB)
}
