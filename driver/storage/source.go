package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	pathrs "github.com/cyphar/filepath-securejoin/pathrs-lite"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// closedTaskDirs are directories in a task's that no job may mount: Nomad's own, and ours. A task that could replace the
// directories in ours by links would have the next start mount what they lead to.
var closedTaskDirs = []string{"private", AnonymousDir}

// mountSources finds, and where need be makes, the sources of one start's mounts.
type mountSources struct {
	storage *Storage
	request *Request
	tree    *imageTree
	pinned  *pinnedSources // nil until needed
}

// mount is what the container gets for a wanted mount.
func (m *mountSources) mount(ctx context.Context, w wantedMount) (specs.Mount, error) {
	var source string
	var err error
	switch {
	case w.kind == mountTmpfs:
		return tmpfsMount(w), nil
	case w.kind == mountBind:
		source, err = m.hostPath(w)
	case w.source == "":
		source, err = m.anonymousVolume(ctx, w)
	default:
		source, err = m.storage.namedVolume(ctx, w, m.tree)
	}
	if err == nil {
		err = checkPropagates(source, w.propagation)
	}
	return Bind(source, w.target, w.propagation, w.readonly), err
}

// logs mounts the directory with the pipes of the allocation's logs again, below the allocation's, so that tasks cannot write to it:
// Nomad's log process follows a link that takes the place of a pipe.
func (m *mountSources) logs() (specs.Mount, error) {
	dirs := m.request.Task.TaskDir()
	rel, err := filepath.Rel(m.request.Task.AllocDir, dirs.LogDir)
	if err != nil {
		return specs.Mount{}, err
	}
	source, err := m.pin(rel, false)
	return Bind(source, path.Join(allocDirInContainer, path.Base(rel)), Private, true), err
}

// tmpfsMount mounts a tmpfs on which nothing can be run unless the job says so, as docker does.
func tmpfsMount(w wantedMount) specs.Mount {
	options := append([]string{"nosuid", "nodev", "noexec"}, w.tmpfs...)
	if slices.Contains(w.tmpfs, "exec") {
		options = slices.DeleteFunc(options, func(o string) bool { return o == "noexec" })
	}
	if w.readonly {
		options = append(options, "ro")
	}
	return specs.Mount{Type: mountTmpfs, Source: mountTmpfs, Destination: w.target, Options: options}
}

// hostPath returns the host's path for the source of a bind mount.
func (m *mountSources) hostPath(w wantedMount) (string, error) {
	rel, inside, err := w.place(m.request.Task, m.storage.config.Policy)
	if err != nil {
		return "", err
	}
	if inside {
		return m.pin(rel, w.create)
	}
	if _, err := os.Stat(w.source); errors.Is(err, fs.ErrNotExist) && w.create {
		return w.source, m.makeHostPath(w.source)
	} else if err != nil {
		return "", fmt.Errorf("source = %q: %w; it must be a path that is on the host", w.source, err)
	}
	return w.source, nil
}

// makeHostPath makes a directory of the host's, with those above it that are missing.
func (m *mountSources) makeHostPath(source string) error {
	first := source
	for parent := filepath.Dir(first); ; first, parent = parent, filepath.Dir(parent) {
		if _, err := os.Lstat(parent); err == nil || parent == first {
			break
		}
	}
	if err := os.MkdirAll(source, 0o755); err != nil {
		return err
	}
	return m.request.handOver(first)
}

// place reports whether the source of a bind mount lies in the allocation's directory, and where there. Elsewhere it may lie
// only if the operator says so.
func (w *wantedMount) place(cfg *drivers.TaskConfig, policy Policy) (rel string, inside bool, err error) {
	rel, inside, err = inAlloc(cfg, w.source)
	if err == nil && !inside && !policy.Enabled {
		err = fmt.Errorf("source = %q: paths of the host are not enabled on this node, only those in the allocation's "+
			"directory; the operator can with volumes { enabled = true } in the plugin's configuration", w.source)
	}
	return rel, inside, err
}

// CheckTask checks what depends on the task: where the sources lie, and what the agent mounts for it.
func (o *Options) CheckTask(cfg *drivers.TaskConfig, policy Policy) error {
	wanted, err := o.wantedMounts(policy)
	if err != nil {
		return err
	}
	var errs []error
	for _, w := range wanted {
		if w.kind == mountBind {
			if _, _, err := w.place(cfg, policy); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", w.option, err))
			}
		}
		for _, m := range cfg.Mounts {
			if path.Clean(m.TaskPath) == w.target {
				errs = append(errs, fmt.Errorf("volume_mount with the destination %q and %s both mount at %s; remove one",
					m.TaskPath, w.option, w.target))
			}
		}
	}
	return errors.Join(errs...)
}

// inAlloc reports whether a source lies in the allocation's directory, and where there.
func inAlloc(cfg *drivers.TaskConfig, source string) (rel string, inside bool, err error) {
	host := source
	if !filepath.IsAbs(host) {
		host = filepath.Join(cfg.TaskDir().Dir, host)
	}
	rel, err = filepath.Rel(cfg.AllocDir, host)
	if err != nil || !filepath.IsLocal(rel) {
		return "", false, nil //nolint:nilerr // Two absolute paths of which one is no parent of the other: not inside.
	}
	parts := strings.Split(rel, "/")
	switch {
	case parts[0] == filepath.Base(cfg.TaskDir().SharedAllocDir):
		return rel, true, nil
	case len(parts) < 2:
		return "", false, fmt.Errorf("source = %q: must not be the directory of a whole task or allocation; name one in it, "+
			"such as \"local/data\"", source)
	case slices.Contains(closedTaskDirs, parts[1]):
		return "", false, fmt.Errorf("source = %q: must not lie in %q of the task's directory, which is not for jobs",
			source, parts[1])
	}
	return rel, true, nil
}

// pinned opens a path in the allocation's directory and pins it.
func (m *mountSources) pin(rel string, create bool) (string, error) {
	var made func(string) error
	if create {
		made = m.request.handOver
	}
	file, err := openInAlloc(m.request.Task.AllocDir, rel, made)
	if err != nil {
		return "", err
	}
	defer file.Close()
	if m.pinned == nil {
		m.pinned, err = newPinnedSources(m.storage.config.RunDir, m.request.ContainerID)
		if err != nil {
			return "", fmt.Errorf("make a place for the sources of mounts: %w", err)
		}
	}
	return m.pinned.add(file)
}

// release lets go of what the runtime needs only until the container has started.
func (m *mountSources) release() {
	if m.pinned == nil {
		return
	}
	if err := m.pinned.release(); err != nil {
		m.storage.config.Logger.Warn("a place for the sources of mounts is left; the next start of the plugin removes it",
			"path", m.pinned.dir, "error", err)
	}
}

// openInAlloc opens a path in the allocation's directory for nothing but to mount it. What is missing of it is made if made is
// set, which is then called with the first directory that was.
//
// Tasks write to local/, secrets/ and alloc/, and an artifact can bring any link. So every part of the path is resolved
// beneath the directory that Nomad made, by descriptor: a link may lead to another place in the same directory, which its
// writer could have written to just as well, and never out of it, to another task's secrets or to the host.
func openInAlloc(allocDir, rel string, made func(dir string) error) (*os.File, error) {
	dir, err := os.OpenFile(allocDir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	for i, part := range stations(rel) {
		next, err := pathrs.OpenatInRoot(dir, part)
		if errors.Is(err, fs.ErrNotExist) && made != nil && i > 0 {
			next, err = makeInRoot(dir, part, made)
		}
		dir.Close()
		if err != nil {
			return nil, notInAlloc(rel, err)
		}
		dir = next
	}
	return dir, nil
}

// makeInRoot makes a directory beneath root, with those above it that are missing, and opens it. made is called with the first.
func makeInRoot(root *os.File, name string, made func(dir string) error) (*os.File, error) {
	first := ""
	for _, element := range strings.Split(name, "/") {
		first = filepath.Join(first, element)
		file, err := pathrs.OpenatInRoot(root, first)
		if err != nil {
			break
		}
		file.Close()
	}
	dir, err := pathrs.MkdirAllHandle(root, name, 0o755)
	if err != nil {
		return nil, err
	}
	top, err := pathrs.OpenatInRoot(root, first)
	if err == nil {
		err = made(byDescriptor(top))
		top.Close()
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// notInAlloc leaves out the host's path, which would tell the user nothing.
func notInAlloc(rel string, err error) error {
	for pathErr := (*os.PathError)(nil); errors.As(err, &pathErr); {
		err = pathErr.Err
	}
	return fmt.Errorf("open %s in the allocation's directory: %w; an artifact or template block can put it there, and a link "+
		"must not lead out of it", rel, err)
}

// stations takes a path in the allocation's directory apart where its resolution must not go back: after alloc/, or after
// TASK/ and the directory in it.
func stations(rel string) []string {
	depth := 3
	if strings.HasPrefix(rel+"/", "alloc/") {
		depth = 2
	}
	return strings.SplitN(rel, "/", depth)
}
