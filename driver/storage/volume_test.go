package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/plugins/drivers"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/internal/needs"
	"github.com/tranche-gpu/tranche/internal/thread"

	"github.com/tranche-gpu/tranche/internal/mounttest"
)

func TestMakeVolume(t *testing.T) {
	path := t.TempDir()
	dir, err := os.OpenRoot(path)
	must.NoError(t, err)
	defer dir.Close()
	empty := wantedMount{noCopy: true}

	// What a plugin process left that was killed while it filled the volume is not used.
	mounttest.Write(t, path, map[string]string{".new-data/half": ""})
	must.NoError(t, makeVolume(context.Background(), dir, "data", empty, &imageTree{request: &Request{}}))
	must.FileNotExists(t, filepath.Join(path, "data/half"))
	must.DirNotExists(t, filepath.Join(path, ".new-data"))

	mounttest.Write(t, path, map[string]string{"data/f": "a task's"})
	must.NoError(t, makeVolume(context.Background(), dir, "data", empty, &imageTree{request: &Request{}}))
	must.FileExists(t, filepath.Join(path, "data/f"))

	mounttest.Write(t, path, map[string]string{"file": ""})
	must.NoError(t, os.Symlink("/etc", filepath.Join(path, "link")))
	for _, name := range []string{"file", "link"} {
		err := makeVolume(context.Background(), dir, name, empty, &imageTree{request: &Request{}})
		must.ErrorContains(t, err, "is no directory")
		must.ErrorContains(t, err, name)
	}
}

func TestNamedVolume_OfManyAtOnce(t *testing.T) {
	s := New(Config{VolumeDir: t.TempDir()})
	for round := range 50 {
		w := wantedMount{source: fmt.Sprintf("v%d", round), noCopy: true}
		errs := make(chan error)
		for range 16 {
			go func() {
				_, err := s.namedVolume(context.Background(), w, &imageTree{request: &Request{}})
				errs <- err
			}()
		}
		for range 16 {
			must.NoError(t, <-errs)
		}
	}
}

func TestOpenVolumeDir_IsRootsAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a/volumes")
	dir, lock, err := openVolumeDir(path)
	must.NoError(t, err)
	defer dir.Close()
	defer lock.Close()
	info, err := os.Stat(path)
	must.NoError(t, err)
	must.Eq(t, 0o700, info.Mode().Perm())
}

func TestSweepVolumeDrafts(t *testing.T) {
	path := t.TempDir()
	mounttest.Write(t, path, map[string]string{".new-data/half": "", "data/f": ""})
	dir, lock, err := openVolumeDir(path)
	must.NoError(t, err)
	must.NoError(t, sweepVolumeDrafts(path))
	must.FileExists(t, filepath.Join(path, ".new-data/half"), must.Sprint("a draft in use was swept"))
	dir.Close()
	lock.Close()
	must.NoError(t, sweepVolumeDrafts(path))
	must.DirNotExists(t, filepath.Join(path, ".new-data"))
	must.FileExists(t, filepath.Join(path, "data/f"))
	must.NoError(t, sweepVolumeDrafts(filepath.Join(path, "none")))
}

func TestCopyFromRoot(t *testing.T) {
	needs.Root(t, "to mount")
	host, root := t.TempDir(), t.TempDir()
	mounttest.Write(t, host, map[string]string{"secret": "the host's"})
	mounttest.Write(t, root, map[string]string{"srv/data/a": "a", "srv/data/sub/b": "b", "file": "", "host/secret": "the image's"})
	must.NoError(t, os.Chown(filepath.Join(root, "srv/data"), 1000, 2000))
	must.NoError(t, os.Chmod(filepath.Join(root, "srv/data"), 0o750|os.ModeSetgid))
	must.NoError(t, os.Lchown(filepath.Join(root, "srv/data/a"), 33, 44))
	for link, target := range map[string]string{
		"data": "/srv/data", "up": "../../../../../../.." + host, "abs": host, "srv/data/link": host, "here": "host",
	} {
		must.NoError(t, os.Symlink(target, filepath.Join(root, link)))
	}
	copied := func(from string) (string, error) {
		to := t.TempDir()
		dir, err := os.Open(to)
		must.NoError(t, err)
		defer dir.Close()
		return to, copyFromRoot(root, from, dir)
	}
	for _, from := range []string{"/srv/data", "/data", "data", "/srv/data/"} {
		to, err := copied(from)
		must.NoError(t, err)
		info, err := os.Stat(to)
		must.NoError(t, err)
		must.Eq(t, 0o750|os.ModeSetgid, info.Mode()&^os.ModeDir)
		stat := info.Sys().(*syscall.Stat_t)
		must.Eq(t, []uint32{1000, 2000}, []uint32{stat.Uid, stat.Gid})
		text, err := os.ReadFile(filepath.Join(to, "sub/b"))
		must.NoError(t, err)
		must.Eq(t, "b", string(text))
		info, err = os.Stat(filepath.Join(to, "a"))
		must.NoError(t, err)
		must.Eq(t, 33, info.Sys().(*syscall.Stat_t).Uid)
		// A link that leads out is copied, and what it leads to is not.
		link, err := os.Readlink(filepath.Join(to, "link"))
		must.NoError(t, err)
		must.Eq(t, host, link)
	}
	for _, from := range []string{"/up", "/abs", "/none", "/../../.." + host} {
		to, err := copied(from)
		must.NoError(t, err)
		entries, err := os.ReadDir(to)
		must.NoError(t, err)
		must.SliceEmpty(t, entries, must.Sprint(from))
	}
	to, err := copied("/here")
	must.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(to, "secret"))
	must.NoError(t, err)
	must.Eq(t, "the image's", string(text))

	_, err = copied("/file")
	must.ErrorContains(t, err, "the image has a file at /file")
}

func TestShortenLayers(t *testing.T) {
	base := t.TempDir()
	var long, short []string
	for i := range 100 {
		must.NoError(t, os.MkdirAll(filepath.Join(base, fmt.Sprint(i), "fs"), 0o755))
		long = append(long, filepath.Join(base, fmt.Sprint(i), "fs"))
		short = append(short, fmt.Sprintf("%d/fs", i))
	}
	options := []string{"index=off", "lowerdir=" + strings.Join(long, ":")}
	m := mount.Mount{Type: "overlay", Options: options}
	needs.Root(t, "to mount")
	must.NoError(t, thread.RunWithMounts(func() error { // whose thread has a working directory of its own
		if err := shortenLayers(&m); err != nil {
			return err
		}
		_, err := os.Stat("99/fs")
		return err
	}))
	must.Eq(t, []string{"index=off", "lowerdir=" + strings.Join(short, ":")}, m.Options)
	must.StrHasPrefix(t, "lowerdir="+base, options[1], must.Sprint("the snapshotter's own list was changed"))

	other := mount.Mount{Type: "overlay", Options: []string{"lowerdir=/a/1/fs:/b/2/fs"}}
	must.NoError(t, shortenLayers(&other))
	must.Eq(t, "lowerdir=/a/1/fs:/b/2/fs", other.Options[0])
}

func TestImageVolumes(t *testing.T) {
	config := ocispec.ImageConfig{Volumes: map[string]struct{}{"/data": {}, "/cache/": {}, "/local": {}, "/mine": {}}}
	taken := func() map[string]bool { return map[string]bool{"/local": true, "/mine": true} }
	targets := func(all []wantedMount) []string {
		var list []string
		for _, w := range all {
			list = append(list, w.kind+" "+w.target)
		}
		return list
	}
	for mode, want := range map[string][]string{
		"": {"volume /cache", "volume /data"}, "anonymous": {"volume /cache", "volume /data"},
		"tmpfs": {"tmpfs /cache", "tmpfs /data"}, "ignore": nil,
	} {
		got, err := imageVolumes(config, mode, taken())
		must.NoError(t, err)
		must.Eq(t, want, targets(got), must.Sprint(mode))
		for _, w := range got {
			must.Eq(t, "", w.source)
		}
	}
	for _, bad := range []string{"/", "relative", "/proc/sys", "/dev", "/.tranche"} {
		config := ocispec.ImageConfig{Volumes: map[string]struct{}{bad: {}}}
		_, err := imageVolumes(config, "", taken())
		must.ErrorContains(t, err, fmt.Sprintf("%q", bad))
		must.ErrorContains(t, err, `image_volumes = "ignore"`)
		_, err = imageVolumes(config, "ignore", taken())
		must.NoError(t, err)
	}
}

func TestWithMountOrder(t *testing.T) {
	var given []specs.Mount
	for _, at := range []string{
		"/proc", "/dev", "/dev/pts", "/etc/hosts", "/a/b/c", "/etc", "/a", "/a/b/", "/z", "/etc/hosts",
	} {
		given = append(given, specs.Mount{Destination: at, Source: fmt.Sprint(len(given))})
	}
	s := apply(t, specOption(func(s *specs.Spec) error { s.Mounts = given; return nil }), WithMountOrder())
	var order []string
	for _, m := range s.Mounts {
		order = append(order, m.Destination+" "+m.Source)
	}
	must.Eq(t, []string{"/proc 0", "/dev 1", "/etc 5", "/a 6", "/z 8", "/dev/pts 2", "/etc/hosts 3", "/a/b/ 7", "/etc/hosts 9",
		"/a/b/c 4"}, order)
}

func TestPrepared_Propagation(t *testing.T) {
	for options, want := range map[string]string{
		"rprivate": "", "private": "", "rslave": "rslave", "slave": "rslave", "rshared": "rshared", "shared": "rshared",
		"rslave rshared": "rshared", "rshared rslave": "rshared",
	} {
		p := &Prepared{}
		for i, option := range strings.Fields(options) {
			p.mounts = append(p.mounts, Bind("/h", fmt.Sprintf("/t%d", i), option, false))
		}
		s := apply(t, p.WithMounts())
		must.Eq(t, want, s.Linux.RootfsPropagation, must.Sprint(options))
		must.Eq(t, p.mounts, s.Mounts)
	}
}

func TestRelabels(t *testing.T) {
	p := &Prepared{}
	p.add(Bind("/v", "/t", "", false), wantedMount{kind: mountVolume}, "Z")
	p.add(Bind("/s", "/t", "", false), wantedMount{kind: mountBind, relabel: "z"}, "Z")
	p.add(Bind("/n", "/t", "", false), wantedMount{kind: mountBind}, "Z")
	p.add(specs.Mount{Type: mountTmpfs}, wantedMount{kind: mountTmpfs}, "Z")
	must.Eq(t, []relabel{{"/v", false}, {"/s", true}}, p.relabels)

	var done []string
	must.NoError(t, applyRelabels(p.relabels, "label", func(path, label string, shared bool) error {
		done = append(done, fmt.Sprint(path, " ", label, " ", shared))
		return nil
	}))
	must.Eq(t, []string{"/v label false", "/s label true"}, done)
	err := applyRelabels(p.relabels, "label", func(string, string, bool) error { return errors.New("not here") })
	must.ErrorContains(t, err, `give /v the SELinux label "label": not here`)

	cfg := &drivers.TaskConfig{Name: "web"}
	cfg.AllocDir = "/alloc/1"
	must.SliceEmpty(t, taskDirRelabels(cfg, ""))
	must.Eq(t, []relabel{{"/alloc/1/alloc", true}, {"/alloc/1/web/local", false}, {"/alloc/1/web/secrets", false}},
		taskDirRelabels(cfg, "Z"))
}

// apply applies options to an empty spec.
func apply(t *testing.T, opts ...oci.SpecOpts) *specs.Spec {
	t.Helper()
	s := &specs.Spec{}
	for _, opt := range opts {
		must.NoError(t, opt(t.Context(), nil, nil, s))
	}
	return s
}
