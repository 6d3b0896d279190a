package drivercopies

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/internal/needs"
	"github.com/tranche-gpu/tranche/internal/proc/proctest"
	"github.com/tranche-gpu/tranche/runtime/bundle"
	"github.com/tranche-gpu/tranche/runtime/shadow"
	"github.com/tranche-gpu/tranche/runtime/shadowtest"
)

// hookVariable in the environment makes the test binary call Overmount for the bundle and the shadow directory in its
// arguments, as tranche-hook does; "compute-only" may follow.
const hookVariable = "TRANCHE_TEST_HOOK"

const computeOnly = "compute-only"

// errorPrefix begins the errors of that program, to tell them from those of the shell around it.
const errorPrefix = "overmount driver copies:"

func TestMain(m *testing.M) {
	if os.Getenv(hookVariable) == "" {
		os.Exit(m.Run())
	}
	program, err := bundle.ReadProgram(os.Args[1])
	if err == nil {
		err = Overmount(program, shadow.Libraries{Dir: os.Args[2], ComputeOnly: slices.Contains(os.Args[3:], computeOnly)})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, errorPrefix, err)
		proctest.Exit(1)
	}
	proctest.Exit(0)
}

// busybox is the only program of the images here. It has to be linked statically.
const busybox = "/bin/busybox"

// image is a container's bundle in which Overmount is run, in a mount namespace of its own, as by an OCI runtime. The
// driver's libraries in it are lines of text that say what they are.
type image struct {
	t         *testing.T
	bundle    string
	shadowDir string
	outside   string // a directory that is not the container's
	env       []string
	cwd       string // of the container's process; empty for /work
	unhooked  string // a script that is run in the image before the hook
	mounts    string // a script that makes mounts before the hook runs, with the root in $root
	oldKernel bool
	// unprivileged has the hook read no more than the owners of files let it, as root of a user namespace may not read
	// those whose owners the namespace does not have.
	unprivileged bool
	computeOnly  bool
}

func newImage(t *testing.T) *image {
	t.Helper()
	needs.Programs(t, "to make mount namespaces", "unshare", busybox)
	i := &image{t: t, bundle: t.TempDir(), shadowDir: t.TempDir(), outside: t.TempDir()}
	shadowtest.Write(t, i.shadowDir)
	content, err := os.ReadFile(busybox)
	must.NoError(t, err)
	i.write("bin/busybox", string(content))
	for _, dir := range []string{"proc", shadow.CopiesDir} {
		must.NoError(t, os.MkdirAll(i.path(dir), 0o755))
	}
	return i
}

func (i *image) path(name string) string { return filepath.Join(i.bundle, "rootfs", name) }

func (i *image) write(name, content string) {
	i.t.Helper()
	must.NoError(i.t, os.MkdirAll(filepath.Dir(i.path(name)), 0o755))
	must.NoError(i.t, os.WriteFile(i.path(name), []byte(content), 0o755))
}

func (i *image) link(target, name string) {
	i.t.Helper()
	must.NoError(i.t, os.MkdirAll(filepath.Dir(i.path(name)), 0o755))
	must.NoError(i.t, os.Symlink(target, i.path(name)))
}

// inNamespace mounts the copies directory and what else the test mounts, runs the hook, and then a script in the image; or, after
// "mounts:", says what is mounted.
const inNamespace = `set -e
root=$1 mountinfo=$2 script=$3 before=$4 unhooked=$5
shift 5
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
[ "$before" = no-tmpfs ] || mount -t tmpfs -o ro,nosuid,nodev,mode=0755 tmpfs "$root/.tranche/c"
[ "$before" = no-tmpfs ] || eval "$before"
[ -z "$unhooked" ] || chroot "$root" /bin/busybox sh -c "$unhooked"
cat /proc/self/mountinfo >"$mountinfo.before"
"$@"
cat /proc/self/mountinfo >"$mountinfo.after"
[ -z "$script" ] || chroot "$root" /bin/busybox sh -c "$script"
`

// run runs the hook, and returns what the script in the image printed.
func (i *image) run(script string) (string, error) {
	i.t.Helper()
	spec, err := json.Marshal(specs.Spec{
		Root: &specs.Root{Path: "rootfs"}, Process: &specs.Process{Env: i.env, Cwd: cmp.Or(i.cwd, "/work")},
	})
	must.NoError(i.t, err)
	must.NoError(i.t, os.WriteFile(filepath.Join(i.bundle, "config.json"), spec, 0o600))
	self, err := os.Executable()
	must.NoError(i.t, err)
	hook := []string{self, i.bundle, i.shadowDir}
	if i.computeOnly {
		hook = append(hook, computeOnly)
	}
	if i.unprivileged {
		hook = append([]string{"setpriv", "--bounding-set=-dac_override,-dac_read_search"}, hook...)
	}
	cmd := exec.Command("unshare", append([]string{
		"--mount", "--propagation", "private", "sh", "-c", inNamespace, "sh", i.path(""), i.mountinfo(), script, i.mounts, i.unhooked,
	}, hook...)...)
	cmd.Env = append(os.Environ(), hookVariable+"=1")
	if i.oldKernel {
		cmd.Env = append(cmd.Env, oldKernelVariable+"=1")
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, &stderr)
	}
	return string(output), nil
}

// mountinfo is the prefix of files with the mounts before and after the hook.
func (i *image) mountinfo() string { return filepath.Join(i.bundle, "mountinfo") }

// overmounted lists the paths, in the image, that the hook has mounted something on.
func (i *image) overmounted() []string {
	i.t.Helper()
	read := func(name string) []*mountinfo.Info {
		file, err := os.Open(i.mountinfo() + name)
		must.NoError(i.t, err)
		defer file.Close()
		mounts, err := mountinfo.GetMountsFromReader(file, nil)
		must.NoError(i.t, err)
		return mounts
	}
	had := map[int]bool{}
	for _, mount := range read(".before") {
		had[mount.ID] = true
	}
	var paths []string
	for _, mount := range read(".after") {
		if !had[mount.ID] {
			at, inside := strings.CutPrefix(mount.Mountpoint, i.path(""))
			must.True(i.t, inside, must.Sprintf("the hook has mounted something outside the container, on %s", mount.Mountpoint))
			if !strings.HasPrefix(at, shadow.CopiesDir+"/") {
				paths = append(paths, at)
			}
		}
	}
	return paths
}

func TestOvermount_ComputeOnly(t *testing.T) {
	i := newImage(t)
	i.computeOnly = true
	i.write("usr/lib/libcuda.so.1", "copy")
	i.write("usr/lib/libnvidia-ml.so.1", "copy\n")
	output, err := i.run("/bin/busybox tail -n 1 /usr/lib/libcuda.so.1 && /bin/busybox cat /usr/lib/libnvidia-ml.so.1")
	must.NoError(t, err)
	must.Eq(t, "shadow compute/libcuda\ncopy\n", output)
	must.Eq(t, []string{"/usr/lib/libcuda.so.1"}, i.overmounted())
}

func TestOvermount(t *testing.T) {
	cases := []struct {
		name string
		env  []string
		lay  func(i *image)
		want []string // what is overmounted
	}{
		{"nothing", nil, func(*image) {}, nil},
		{"a library", nil, func(i *image) { i.write("usr/lib/libcuda.so.1", "copy") }, []string{"/usr/lib/libcuda.so.1"}},
		{"NVML", nil, func(i *image) { i.write("usr/lib/libnvidia-ml.so.1", "copy") }, []string{"/usr/lib/libnvidia-ml.so.1"}},
		{"other libraries", nil, func(i *image) {
			i.write("usr/lib/libcudart.so.12", "other")
			i.write("usr/lib/libcudadebugger.so.1", "other")
		}, nil},
		{"the stub to link against", nil, func(i *image) { i.write("usr/local/cuda/lib64/stubs/libcuda.so", "stub") }, nil},
		{"an absolute link", nil, func(i *image) {
			i.write("opt/libcuda.so.575", "copy")
			i.link("/opt/libcuda.so.575", "usr/lib/libcuda.so.1")
		}, []string{"/opt/libcuda.so.575"}},
		{"a link with more steps up than there are", nil, func(i *image) {
			i.write("opt/libcuda.so.575", "copy")
			i.link("../../../../../../../../../../opt/libcuda.so.575", "usr/lib/libcuda.so.1")
		}, []string{"/opt/libcuda.so.575"}},
		{"LD_LIBRARY_PATH, relative", []string{"LD_LIBRARY_PATH=/none:lib:"}, func(i *image) {
			i.write("work/lib/libcuda.so.1", "copy")
			i.write("work/libcuda.so", "copy")
		}, []string{"/work/lib/libcuda.so.1", "/work/libcuda.so"}},
		{"LD_LIBRARY_PATH with the name of the directory", []string{"LD_LIBRARY_PATH=/opt/${LIB}"}, func(i *image) {
			i.write("opt/lib64/libcuda.so.1", "copy")
		}, []string{"/opt/lib64/libcuda.so.1"}},
		{"LD_LIBRARY_PATH, set twice", []string{"LD_LIBRARY_PATH=/opt/a", "LD_LIBRARY_PATH=/opt/b"}, func(i *image) {
			i.write("opt/b/libcuda.so.1", "copy")
		}, []string{"/opt/b/libcuda.so.1"}},
		{"a directory with the characters of a pattern", []string{"LD_LIBRARY_PATH=/opt/[a]*"}, func(i *image) {
			i.write("opt/[a]*/libcuda.so.1", "copy")
			i.write("opt/a/libcuda.so.1", "copy")
		}, []string{"/opt/[a]*/libcuda.so.1"}},
		{"LD_PRELOAD", []string{"LD_PRELOAD=/opt/x.so:/opt/libcuda.so.1"}, func(i *image) {
			i.write("opt/libcuda.so.1", "copy")
		}, []string{"/opt/libcuda.so.1"}},
		{"directories for a processor's features", nil, func(i *image) {
			i.write("usr/lib/tls/haswell/avx512_1/mmx/sse/sse2/libcuda.so.1", "copy")
			i.link("..", "usr/lib/tls/tls")
		}, []string{"/usr/lib/tls/haswell/avx512_1/mmx/sse/sse2/libcuda.so.1"}},
		{"variables that end early", []string{"LD_LIBRARY_PATH=/opt/a\x00b", "LD_PRELOAD=/opt/libcuda.so.2\x00b"}, func(i *image) {
			i.write("opt/a/libcuda.so.1", "copy")
			i.write("opt/libcuda.so.2", "copy")
		}, []string{"/opt/a/libcuda.so.1", "/opt/libcuda.so.2"}},
		{"a configuration of many files", nil, func(i *image) {
			for n := range 40 {
				i.write(fmt.Sprintf("etc/%d.conf", n), fmt.Sprintf("include %d.conf\n", n+1))
			}
			i.write("etc/ld.so.conf", "include 0.conf")
			i.write("etc/40.conf", "/opt/some where\n")
			i.write("opt/some where/libcuda.so.1", "copy")
		}, []string{"/opt/some where/libcuda.so.1"}},
		{"musl's configuration", nil, func(i *image) {
			i.write("etc/ld-musl-x86_64.path", "/lib:/opt/musl\n")
			i.write("opt/musl/libcuda.so.1", "copy")
		}, []string{"/opt/musl/libcuda.so.1"}},
		{"a configuration that includes itself", nil, func(i *image) {
			i.write("etc/ld.so.conf", "include /etc/*.conf\ninclude ld.so.conf\n/opt/lib=libc6 # ours\n")
			i.write("opt/lib/libcuda.so.1", "copy")
		}, []string{"/opt/lib/libcuda.so.1"}},
		{"a mount in a directory that nothing names", nil, func(i *image) {
			must.NoError(i.t, os.WriteFile(filepath.Join(i.outside, "driver"), []byte("host's"), 0o644))
			i.write("srv/some where/libcuda.so.575", "")
			i.mounts = fmt.Sprintf(`mount --bind %s/driver "$root/srv/some where/libcuda.so.575"`, i.outside)
		}, []string{"/srv/some where/libcuda.so.575"}},
		{"no files", nil, func(i *image) {
			must.NoError(i.t, os.MkdirAll(i.path("usr/lib/libcuda.so.1"), 0o755))
			must.NoError(i.t, unix.Mkfifo(i.path("usr/lib/libcuda.so"), 0o644))
			must.NoError(i.t, unix.Mkfifo(i.path("usr/lib/libcuda.so.2"), 0o644))
			i.write("etc/none", "")
			must.NoError(i.t, unix.Mkfifo(i.path("etc/ld.so.conf"), 0o644))
			must.NoError(i.t, unix.Mkfifo(i.path("etc/ld.so.cache"), 0o644))
			i.link("libcuda.so.3", "usr/lib/libcuda.so.3")
		}, nil},
		{"the driver's name for a file of the kernel's", nil, func(i *image) {
			i.link("/proc/sys/kernel/core_pattern", "usr/lib/libcuda.so")
		}, nil},
		{"the driver's name for a file of ours", nil, func(i *image) {
			i.write(".tranche/claims/0123abcd/limit", "limit")
			i.link("/.tranche/claims/0123abcd/limit", "usr/lib/libcuda.so.1")
		}, nil},
		{"a volume that root may not read", []string{"LD_LIBRARY_PATH=/srv/volume:/srv/volume/lib"}, func(i *image) {
			i.unprivileged = true
			must.NoError(i.t, os.MkdirAll(i.path("srv/volume"), 0o755))
			must.NoError(i.t, errors.Join(os.Chmod(i.outside, 0o700), os.Chown(i.outside, 1, 1)))
			i.mounts = fmt.Sprintf(`mount --bind %s "$root/srv/volume"`, i.outside)
		}, nil},
		{"a file of the host's", nil, func(i *image) {
			must.NoError(i.t, os.WriteFile(filepath.Join(i.outside, "libcuda.so.1"), []byte("host's"), 0o644))
			i.link(filepath.Join(i.outside, "libcuda.so.1"), "usr/lib/libcuda.so.1")
			i.link("/proc/self/root"+i.outside+"/libcuda.so.1", "usr/lib/libcuda.so")
			i.link(i.outside, "usr/local/cuda/compat")
		}, nil},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			i := newImage(t)
			i.env = tc.env
			tc.lay(i)
			_, err := i.run("")
			must.NoError(t, err)
			must.SliceContainsAll(t, tc.want, i.overmounted())
		})
	}
}

// No system call is needed that came with Linux 5.2 or later.
func TestOvermount_OldKernel(t *testing.T) {
	i := newImage(t)
	i.oldKernel = true
	i.write("opt/libcuda.so.575", "copy")
	i.link("../../../../opt/libcuda.so.575", "usr/lib/libcuda.so.1")
	_, err := i.run("")
	must.NoError(t, err)
	must.Eq(t, []string{"/opt/libcuda.so.575"}, i.overmounted())
}

// Behind each shadow lies the very copy that it covers, and both can be read only.
func TestOvermount_Behind(t *testing.T) {
	i := newImage(t)
	i.write("usr/lib/libcuda.so.1", "copy A\n")
	i.write("usr/local/cuda/compat/libcuda.so.575", "copy B\n")
	i.link("libcuda.so.575", "usr/local/cuda/compat/libcuda.so.1")
	i.write("usr/lib/libnvidia-ml.so.1", "copy C\n")
	output, err := i.run(`busybox() { /bin/busybox "$@"; }
for file in /usr/lib/libcuda.so.1 /usr/local/cuda/compat/libcuda.so.1 /usr/lib/libnvidia-ml.so.1; do
	driver=$(busybox strings $file | busybox grep '^/.tranche/c/')
	echo "$file: $(busybox tail -n 1 $file), behind it $(busybox cat $driver)"
	for name in $file $driver /.tranche/c/new; do
		if (echo >>$name) 2>&-; then echo "$name can be written"; fi
	done
done; true`)
	must.NoError(t, err)
	must.Eq(t, []string{
		"/usr/lib/libcuda.so.1: shadow libcuda, behind it copy A",
		"/usr/local/cuda/compat/libcuda.so.1: shadow libcuda, behind it copy B",
		"/usr/lib/libnvidia-ml.so.1: shadow libnvidia-ml, behind it copy C",
	}, strings.Split(strings.TrimSpace(output), "\n"))
	content, err := os.ReadFile(i.path("usr/lib/libcuda.so.1"))
	must.NoError(t, err)
	must.Eq(t, "copy A\n", string(content))
}

// What the hook has done once needs nothing more, as where a runtime calls it twice.
func TestOvermount_Twice(t *testing.T) {
	i := newImage(t)
	i.write("usr/lib/libcuda.so.1", "copy")
	self, err := os.Executable()
	must.NoError(t, err)
	i.mounts = fmt.Sprintf("%s %s %s", self, i.bundle, i.shadowDir)
	_, err = i.run("")
	must.NoError(t, err)
	must.Eq(t, nil, i.overmounted())
}

func TestOvermount_Refuses(t *testing.T) {
	cases := []struct {
		name, want string
		lay        func(i *image)
	}{
		{"a volume that is shared with the host", `propagation "shared"`, func(i *image) {
			must.NoError(i.t, os.WriteFile(filepath.Join(i.outside, "libcuda.so.1"), []byte("host's"), 0o644))
			must.NoError(i.t, os.MkdirAll(i.path("usr/local/nvidia/lib"), 0o755))
			i.mounts = fmt.Sprintf(`mount --bind %[1]s "$root/usr/local/nvidia/lib"
				mount --make-shared "$root/usr/local/nvidia/lib"`, i.outside)
		}},
		{"too many copies", "more than 64", func(i *image) {
			for n := range maxCopies + 1 {
				i.write(fmt.Sprintf("usr/lib/libcuda.so.%d", n), "copy")
			}
		}},
		{"no place for copies", "not the tmpfs", func(i *image) {
			i.write("usr/lib/libcuda.so.1", "copy")
			i.mounts = "no-tmpfs"
		}},
		{"a file of a process", "look up in the container /usr/lib/libcuda.so.1: it leads through process 1 in /proc", func(i *image) { i.link("/proc/1/attr/exec", "usr/lib/libcuda.so.1") }},
		{"a link of a process", "process 1 in /proc", func(i *image) { i.link("/proc/1/root"+i.outside, "usr/lib64") }},
		{"a directory that may be searched and not listed", "the container's root may not look into it", func(i *image) {
			i.write("opt/real/libcuda.so.1", "copy")
			i.env, i.unprivileged = []string{"LD_LIBRARY_PATH=/opt/real"}, true
			must.NoError(i.t, errors.Join(os.Chmod(i.path("opt/real"), 0o711), os.Chown(i.path("opt/real"), 1, 1)))
		}},
		{"a cache for a group alone", "the container's root may not look into it", func(i *image) {
			i.write("etc/ld.so.cache", "")
			i.unprivileged = true
			must.NoError(i.t, errors.Join(os.Chmod(i.path("etc/ld.so.cache"), 0o040), os.Chown(i.path("etc/ld.so.cache"), 1, 1)))
		}},
		{"a directory for a group alone", "the container's root may not look into it", func(i *image) {
			i.write("opt/group/real/libcuda.so.1", "copy")
			i.env, i.unprivileged = []string{"LD_LIBRARY_PATH=/opt/group/real"}, true
			must.NoError(i.t, errors.Join(os.Chmod(i.path("opt/group"), 0o070), os.Chown(i.path("opt/group"), 1, 1)))
		}},
		{"no shadow", "shadow_dir", func(i *image) {
			i.write("usr/lib/libcuda.so.1", "copy")
			must.NoError(i.t, os.Remove(filepath.Join(i.shadowDir, "libcuda.so.1")))
		}},
		{"a search path without end", "too many", func(i *image) {
			for n := range maxLookupsAtLeast {
				i.env = append(i.env, fmt.Sprintf(":/%d", n))
			}
			i.env = []string{"LD_LIBRARY_PATH=" + strings.Join(i.env, "")}
		}},
		{"a configuration without end", "too many", func(i *image) {
			i.write("etc/ld.so.conf", strings.Repeat("/a\n", maxConfigDirs+1))
		}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			i := newImage(t)
			tc.lay(i)
			_, err := i.run("")
			must.ErrorContains(t, err, tc.want)
			must.ErrorContains(t, err, errorPrefix)
		})
	}
}

// maxLookupsAtLeast is more than one container's files are looked up.
const maxLookupsAtLeast = 20_001
