package rootfs_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/runtime/rootfs"
)

// newRoot makes a root file system from files' contents; a content that begins with "-> " makes a link.
func newRoot(t *testing.T, files map[string]string) (*rootfs.Root, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "root")
	must.NoError(t, os.Mkdir(dir, 0o755))
	for name, content := range files {
		file := filepath.Join(dir, name)
		must.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			must.NoError(t, os.Symlink(target, file))
		} else {
			must.NoError(t, os.WriteFile(file, []byte(content), 0o644))
		}
	}
	root, err := rootfs.Open(dir, "/work")
	must.NoError(t, err)
	t.Cleanup(func() { _ = root.Close() })
	return root, dir
}

func TestReadFile(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret")
	must.NoError(t, os.WriteFile(outside, []byte("secret"), 0o644))
	root, dir := newRoot(t, map[string]string{
		"etc/hostname": "inside", "absolute": "-> /etc/hostname", "up": "-> ../../../../../../etc/hostname",
		"out": "-> " + outside, "upout": "-> ../../../../../.." + outside, "loop": "-> loop", "dir/x": "x",
		"long": strings.Repeat("x", 100),
	})
	must.NoError(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o644))
	for name, want := range map[string]string{
		"/etc/hostname": "inside", "etc/hostname": "inside", "/absolute": "inside", "/up": "inside",
		"/../../etc/hostname": "inside", "/dir/../etc/hostname": "inside",
	} {
		content, err := root.ReadFile(name, 64)
		must.NoError(t, err, must.Sprint(name))
		must.Eq(t, want, string(content))
	}
	for _, name := range []string{"/out", "/upout", "/none", "/loop", "/fifo", "/etc/hostname/x", "/a\x00b"} {
		_, err := root.ReadFile(name, 64)
		must.Error(t, err, must.Sprint(name))
		must.True(t, rootfs.Unreachable(err), must.Sprintf("%s: %v", name, err))
	}
	_, err := root.ReadFile("/long", 64)
	must.ErrorIs(t, err, rootfs.ErrTooMuch)
	must.False(t, rootfs.Unreachable(err))
}

func TestWhere(t *testing.T) {
	root, dir := newRoot(t, map[string]string{"usr/lib/x": "x", "lib": "-> usr/lib", "y": "-> /lib/x"})
	link := filepath.Join(t.TempDir(), "link") // a container manager may name the root by one
	must.NoError(t, os.Symlink(dir, link))
	byLink, err := rootfs.Open(link, "/")
	must.NoError(t, err)
	defer byLink.Close()
	for name, want := range map[string]string{"/": "/", "/lib": "/usr/lib", "/lib/x": "/usr/lib/x", "y": "/usr/lib/x"} {
		for _, r := range []*rootfs.Root{root, byLink} {
			at, err := r.Where(name)
			must.NoError(t, err)
			must.Eq(t, want, at)
		}
	}
	_, err = root.Where("/none")
	must.ErrorIs(t, err, fs.ErrNotExist)
}

// Of what /proc has of each process, only its root and its working directory lead each to the same place.
func TestWhere_Proc(t *testing.T) {
	cwd := t.TempDir()
	must.NoError(t, os.Mkdir(filepath.Join(cwd, "dir"), 0o755))
	for name, target := range map[string]string{"root": "/proc/self/root", "first": "/proc/1/root", "fd": "/dev/fd/0"} {
		must.NoError(t, os.Symlink(target, filepath.Join(cwd, name)))
	}
	root, err := rootfs.Open("/", cwd)
	must.NoError(t, err)
	defer root.Close()
	for name, want := range map[string]string{
		"/proc/self/root":                                "/",
		"/proc/self/root/usr":                            "/usr",
		"/proc/./self/./root/../usr":                     "/usr",
		"/proc/thread-self/root/usr":                     "/usr",
		"/proc/self/cwd/dir":                             cwd + "/dir",
		"/proc/thread-self/cwd/../" + filepath.Base(cwd): cwd,
		"/proc/self/root/proc/self/cwd":                  cwd,
		cwd + "/root" + cwd + "/root/usr":                "/usr",
		"/proc/sys/kernel":                               "/proc/sys/kernel",
		"/proc/sys/../cmdline":                           "/proc/cmdline",
	} {
		at, err := root.Where(name)
		must.NoError(t, err)
		must.Eq(t, want, at, must.Sprint(name))
	}
	for _, name := range []string{
		"/proc/1/root", "/proc/1", "/proc/4194304/cwd/x", "/proc/self", "/proc/self/fd/0", "/proc/self/../self/root",
		"/proc/self/task/1/root", "/proc/thread-self/exe", "/proc/mounts", "/proc/net/dev", cwd + "/first/usr", cwd + "/fd",
		"/proc/sys/../1/root",
	} {
		_, err := root.Where(name)
		must.ErrorIs(t, err, rootfs.ErrUndecided, must.Sprint(name))
		must.ErrorContains(t, err, name)
		must.False(t, rootfs.Unreachable(err))
	}
}

func TestRefuse(t *testing.T) {
	root, _ := newRoot(t, map[string]string{"a/b/c": "", "a/x": "", "x/a/b": "", "link": "-> x/../a/./b/none", "up": "-> /a/b/.."})
	root.Refuse("/a/b")
	for _, name := range []string{"/a/b", "a//b/c", "/link", "/up/x", "/a/b/none"} {
		_, err := root.Where(name)
		must.ErrorIs(t, err, rootfs.ErrRefused, must.Sprint(name))
		must.False(t, rootfs.Unreachable(err))
	}
	for _, name := range []string{"/a", "/a/x", "/x/a/b"} {
		_, err := root.Where(name)
		must.NoError(t, err)
	}
}

// A working directory may have as many links in it as the kernel follows, and a path from there as many again.
func TestWhere_ManyLinks(t *testing.T) {
	links := map[string]string{"l80/x": "x", "loop": "-> loop"}
	for n := range 80 {
		links[fmt.Sprintf("l%d", n)] = fmt.Sprintf("-> l%d", n+1)
	}
	root, _ := newRoot(t, links)
	at, err := root.Where("/l0/x")
	must.NoError(t, err)
	must.Eq(t, "/l80/x", at)
	_, err = root.Where("/loop")
	must.ErrorIs(t, err, unix.ELOOP)
}

func TestWhere_TooDeep(t *testing.T) {
	root, dir := newRoot(t, nil)
	name := strings.Repeat("x", 250)
	at, err := unix.Open(dir, unix.O_PATH, 0)
	must.NoError(t, err)
	for range 20 {
		must.NoError(t, unix.Mkdirat(at, name, 0o755))
		next, err := unix.Openat(at, name, unix.O_PATH, 0)
		must.NoError(t, errors.Join(err, unix.Close(at)))
		at = next
	}
	must.NoError(t, unix.Close(at))
	_, err = root.Where(strings.Repeat("/"+name, 20))
	must.ErrorIs(t, err, rootfs.ErrTooMuch)
}

func TestGlob(t *testing.T) {
	root, _ := newRoot(t, map[string]string{
		"usr/local/cuda-11/compat/x": "", "usr/local/cuda-12/compat/x": "", "usr/local/cuda": "-> cuda-12",
		"usr/local/cudnn/x": "", "usr/local/.cuda/x": "", "etc/a[b]*": "", `etc/b\c`: "",
	})
	for pattern, want := range map[string][]string{
		"/usr/local/cuda*/compat": {
			"/usr/local/cuda/compat", "/usr/local/cuda-11/compat", "/usr/local/cuda-12/compat",
		},
		// What a pattern matches need not be there.
		"/usr/local/*/x": {
			"/usr/local/cuda/x", "/usr/local/cuda-11/x", "/usr/local/cuda-12/x", "/usr/local/cudnn/x",
		},
		"/usr/local/.cu*": {"/usr/local/.cuda"},
		`/etc/a\[b\]\*`:   {"/etc/a[b]*"},
		`/etc/b\\c`:       {`/etc/b\c`},
		"/none/*":         nil,
		"/plain/../path":  {"/plain/../path"},
		"/usr/local/[":    nil,
	} {
		matches, err := root.Glob(pattern)
		must.NoError(t, err)
		must.Eq(t, want, matches, must.Sprint(pattern))
	}
}

// An image whose configuration has us look everywhere gets an error, in time.
func TestBudget(t *testing.T) {
	root, _ := newRoot(t, map[string]string{"a/b": ""})
	var err error
	for range 100_000 {
		if _, err = root.Names("/a"); err != nil {
			break
		}
	}
	must.ErrorIs(t, err, rootfs.ErrTooMuch)
	must.False(t, rootfs.Unreachable(err))
}

func TestLacks(t *testing.T) {
	const glibc, musl = "lib64/ld-linux-x86-64.so.2", "lib/ld-musl-x86_64.so.1"
	cases := []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"glibc", map[string]string{glibc: "loader"}, ""},
		{"glibc, merged into usr", map[string]string{"lib64": "-> usr/lib64", "usr/" + glibc: "loader"}, ""},
		{"glibc, by an absolute link", map[string]string{glibc: "-> /lib/ld.so", "lib/ld.so": "loader"}, ""},
		{"both", map[string]string{glibc: "loader", musl: "loader"}, ""},
		{"musl", map[string]string{musl: "loader"}, "the image has musl as its C library and no glibc"},
		{"none", map[string]string{"bin/busybox": ""}, "the image has no C library that programs could load"},
		{"a link to the host's", map[string]string{glibc: "-> ../../../../../../../../lib64/ld-linux-x86-64.so.2"}, "no C library"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			root, dir := newRoot(t, tc.files)
			line, err := rootfs.Lacks(root)
			must.NoError(t, err)
			if tc.want == "" {
				must.Eq(t, "", line)
			}
			must.StrContains(t, line, tc.want)
			must.StrNotContains(t, line, "\n")
			again, err := rootfs.LacksIn(dir)
			must.NoError(t, err)
			must.Eq(t, line, again)
		})
	}
}

// Somebody who renames in a loop, anywhere on the machine, does not keep containers with such links from starting.
func TestLookUp_WhileOthersRename(t *testing.T) {
	root, dir := newRoot(t, map[string]string{"a/x": "", "b/x": "", "lib/deep/down": "-> ../../../../../../../lib/x", "lib/x": "x"})
	ctx, cancel := context.WithCancel(t.Context())
	var renaming sync.WaitGroup
	for range 2 {
		renaming.Go(func() {
			for ctx.Err() == nil {
				_ = unix.Renameat2(unix.AT_FDCWD, dir+"/a", unix.AT_FDCWD, dir+"/b", unix.RENAME_EXCHANGE)
			}
		})
	}
	for range 500 {
		at, err := root.Where("/lib/deep/down")
		must.NoError(t, err)
		must.Eq(t, "/lib/x", at)
	}
	cancel()
	renaming.Wait()
}

func TestRefuseLinkedDirs(t *testing.T) {
	_, dir := newRoot(t, map[string]string{"dev/null": "", "proc/x": "", "etc": "-> /none", "run/dev": "-> /"})
	must.NoError(t, rootfs.RefuseLinkedDirs(dir))
	must.NoError(t, rootfs.RefuseLinkedDirs(filepath.Join(dir, "none")))
	for name, target := range map[string]string{"dev": "/", "proc": "run", "sys": "/none"} {
		_, dir := newRoot(t, map[string]string{name: "-> " + target, "run/x": ""})
		must.ErrorContains(t, rootfs.RefuseLinkedDirs(dir), "/"+name+" of the image: it is a link")
	}
}

func TestRefuseUserFiles(t *testing.T) {
	for name, c := range map[string]struct {
		make func(file string) error
		err  string
	}{
		"none":        {func(string) error { return nil }, ""},
		"a file":      {func(file string) error { return os.WriteFile(file, nil, 0) }, ""},
		"a directory": {func(file string) error { return os.Mkdir(file, 0) }, ""},
		"a loop":      {func(file string) error { return os.Symlink("group", file) }, ""},
		"a FIFO":      {func(file string) error { return unix.Mkfifo(file, 0o644) }, "/etc/group of the image: it is no file"},
		"too much": {func(file string) error {
			return errors.Join(os.WriteFile(file, nil, 0o644), os.Truncate(file, 65<<20))
		}, "it has 65 MiB, more than 64"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			must.NoError(t, os.Mkdir(filepath.Join(dir, "etc"), 0o755))
			must.NoError(t, c.make(filepath.Join(dir, "etc/group")))
			if err := rootfs.RefuseUserFiles(dir); c.err == "" {
				must.NoError(t, err)
			} else {
				must.ErrorContains(t, err, c.err)
			}
		})
	}
}
