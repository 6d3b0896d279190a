package ociruntime

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/containerd/containerd/api/types/runc/options"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/driver/userns"
)

// crun before 1.24 makes the user of a process the owner of its stdin, stdout and stderr (containers/crun#1847), and
// containerd's shim opens the host's /dev/null for those that a process does not have. The owner of that file can take it
// away from everybody else on the machine. So such a crun starts no container with a user namespace and executes no
// command as another user than root.

// crunVersion matches the first line of `crun --version`.
var crunVersion = regexp.MustCompile(`^crun version (\d+)\.(\d+)`)

// fixedCrunMinor is the first minor version of crun 1 that does not change the owners of devices.
const fixedCrunMinor = 24

// isOldCrun reports whether the output of a runtime's --version is that of a crun before 1.24.
func isOldCrun(output string) bool {
	match := crunVersion.FindStringSubmatch(output)
	if match == nil {
		return false
	}
	major, errMajor := strconv.Atoi(match[1])
	minor, errMinor := strconv.Atoi(match[2])
	return errMajor == nil && errMinor == nil && (major < 1 || major == 1 && minor < fixedCrunMinor)
}

// Versions caches which programs of OCI runtimes are old cruns. The zero value is ready.
type Versions struct {
	mu    sync.Mutex
	known map[string]version
}

// version is valid as long as the program's file has this size and modification time.
type version struct {
	size     int64
	modified time.Time
	oldCrun  bool
}

// versionTimeout bounds a call of a runtime with --version.
const versionTimeout = 5 * time.Second

// isOldCrun reports whether a program is a crun before 1.24. One that prints no version is another runtime.
func (v *Versions) isOldCrun(ctx context.Context, program string) (bool, error) {
	if program == "" {
		return false, nil // the shim's own runtime, which is runc
	}
	info, err := os.Stat(program)
	if err != nil {
		return false, fmt.Errorf("look up the version of runtime %s: %w", program, err)
	}
	v.mu.Lock()
	known, ok := v.known[program]
	v.mu.Unlock()
	if ok && known.size == info.Size() && known.modified.Equal(info.ModTime()) {
		return known.oldCrun, nil
	}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	output, _ := exec.CommandContext(ctx, program, "--version").Output()
	if ctx.Err() != nil {
		return false, fmt.Errorf("look up the version of runtime %s: it does not answer to --version: %w", program, ctx.Err())
	}
	known = version{info.Size(), info.ModTime(), isOldCrun(string(output))}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.known == nil {
		v.known = map[string]version{}
	}
	v.known[program] = known
	return known.oldCrun, nil
}

// CheckUserns refuses an old crun for a container with a user namespace, which is that of a task with userns_mode = "auto".
func (v *Versions) CheckUserns(ctx context.Context, r Runtime) error {
	old, err := v.isOldCrun(ctx, r.Program)
	if err == nil && old {
		err = fmt.Errorf("option userns_mode = %q: %s is a crun before 1.%d, which would give the node's /dev/null to the task; "+
			"install crun 1.%[3]d or newer, or set runtime = \"runc\"", userns.Auto, r.Program, fixedCrunMinor)
	}
	return err
}

// CheckExec refuses to execute a command as another user than root on an old crun.
func (v *Versions) CheckExec(ctx context.Context, container containerd.Container, user specs.User) error {
	if user.UID == 0 && user.GID == 0 {
		return nil
	}
	program, err := programOf(ctx, container)
	if err != nil {
		return err
	}
	old, err := v.isOldCrun(ctx, program)
	if err == nil && old {
		err = fmt.Errorf("%s is a crun before 1.%d, which would give the node's /dev/null to the task's user; install crun "+
			"1.%[2]d or newer, or run the task with runtime = \"runc\"", program, fixedCrunMinor)
	}
	return err
}

// programOf returns the OCI runtime of a container; empty for the shim's own.
func programOf(ctx context.Context, container containerd.Container) (string, error) {
	info, err := container.Info(ctx, containerd.WithoutRefreshedMetadata)
	if err != nil || info.Runtime.Options == nil {
		return "", err
	}
	decoded, err := typeurl.UnmarshalAny(info.Runtime.Options)
	if err != nil {
		return "", fmt.Errorf("read the runtime of container %s: %w", container.ID(), err)
	}
	if runc, ok := decoded.(*options.Options); ok {
		return runc.BinaryName, nil
	}
	return "", nil
}
