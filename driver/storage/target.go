package storage

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// Where a job may not mount anything: what makes the kernel's view of the container, and what is ours.
var (
	closedTrees = []string{"/proc", "/sys", "/dev/pts", "/dev/mqueue", "/dev/fd", shadow.ContainerDir}
	closedPaths = []string{"/", "/dev", "/dev/console", "/dev/full", "/dev/null", "/dev/ptmx", "/dev/random", "/dev/stderr",
		"/dev/stdin", "/dev/stdout", "/dev/tty", "/dev/urandom", "/dev/zero",
		allocDirInContainer, localDirInContainer, secretsDirInContainer}
)

// mountTarget is a mount's path in the container in its clean form. runc resolves it in the container's root when it
// mounts, so that a link in the image leads nowhere else, and refuses those that lead into /proc.
func mountTarget(target string) (string, error) {
	if !path.IsAbs(target) {
		return "", fmt.Errorf("target = %q: must be an absolute path in the container", target)
	}
	clean := path.Clean(target)
	closed := slices.Contains(closedPaths, clean) || slices.ContainsFunc(closedTrees, func(tree string) bool {
		return clean == tree || strings.HasPrefix(clean, tree+"/")
	})
	if closed {
		return "", fmt.Errorf("target = %q: must not be the root, a directory or device that every container has (/proc, "+
			"/sys, /dev and what belongs there, %s, %s, %s), or lie in %s", target,
			allocDirInContainer, localDirInContainer, secretsDirInContainer, shadow.ContainerDir)
	}
	return clean, nil
}

// checkTwice refuses two mounts at one place: one of them would be lost.
func checkTwice(wanted []wantedMount) error {
	var errs []error
	seen := map[string]string{}
	for _, w := range wanted {
		if other, ok := seen[w.target]; ok {
			errs = append(errs, fmt.Errorf("%s and %s both mount at %s; remove one", other, w.option, w.target))
		}
		seen[w.target] = w.option
	}
	return errors.Join(errs...)
}
