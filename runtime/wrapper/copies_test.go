package wrapper_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

// gpuNode is a node with a simulated GPU, whose containers are held to their limit by the real shadow libraries. What
// they get is judged by the simulator's record of physical memory.
type gpuNode struct {
	*node
	build string
	made  string // the claim's entry in the environment
}

const limitMiB = 1024 // of the node's claims

func newGPUNode(t *testing.T, next string) *gpuNode {
	t.Helper()
	n := newContainerNode(t, next)
	build, err := filepath.Abs(os.Getenv("TRANCHE_BUILD"))
	must.NoError(t, err)
	if os.Getenv("TRANCHE_BUILD") == "" {
		build, err = filepath.Abs("../../build")
		must.NoError(t, err)
	}
	must.NoError(t, os.RemoveAll(n.cfg.DriverRoot))
	n.cfg.ShadowDir = filepath.Join(build, "lib")
	n.configure(next)
	g := &gpuNode{node: n, build: build}
	topology, err := filepath.Abs("../../e2e/simgpu/topologies/h200x2.conf")
	must.NoError(t, err)
	layOut := g.simgpu("root", n.cfg.DriverRoot)
	layOut.Env = append(layOut.Env, "SIMGPU_TOPOLOGY="+topology)
	n.must(layOut)
	_, g.made = n.reserve(simulatedGPU, "slice-000")
	return g
}

func (g *gpuNode) simgpu(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(g.build, "sim/bin/simgpu"), args...)
	cmd.Env = append(os.Environ(),
		"SIMGPU_STATE="+filepath.Join(g.cfg.DriverRoot, "run/simgpu/state"),
		"SIMGPU_DEV="+filepath.Join(g.cfg.DriverRoot, "dev"))
	if args[0] != "root" {
		cmd.Env = append(cmd.Env, "SIMGPU_TOPOLOGY="+filepath.Join(g.cfg.DriverRoot, "run/simgpu/topology"))
	}
	return cmd
}

// peakMiB is the most that a container has held of the simulated GPU since the record began.
func (g *gpuNode) peakMiB() uint64 {
	g.t.Helper()
	var record struct {
		Groups []struct {
			PeakBytes uint64 `json:"peak_bytes"`
		}
	}
	must.NoError(g.t, json.Unmarshal([]byte(g.must(g.simgpu("record", "--json"))), &record))
	var peak uint64
	for _, group := range record.Groups {
		peak = max(peak, group.PeakBytes)
	}
	return peak >> 20
}

// driver is the simulated GPU's own libcuda, of which the images here carry copies.
func (g *gpuNode) driver() string {
	return filepath.Join(g.cfg.DriverRoot, runtimetest.LibDir, "libcuda.so.570.124.06")
}

// glibcImage makes a bundle with busybox, glibc and a program that takes more GPU memory than it may, by whichever
// libcuda it finds. It says "shadow" where it was held to its limit.
func (g *gpuNode) glibcImage(name, script string, env ...string) (bundle string) {
	g.t.Helper()
	env = append(env, g.made, fmt.Sprintf("PROBE_LIMIT_MIB=%d", limitMiB))
	bundle = g.image(g.bundle(name, script, env...))
	for _, library := range []string{
		"/lib64/ld-linux-x86-64.so.2", runtimetest.LibDir + "/libc.so.6", runtimetest.LibDir + "/libdl.so.2",
	} {
		g.copyTo(bundle, library, library)
	}
	compile := exec.Command("gcc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-o", filepath.Join(bundle, "rootfs/bin/probe"),
		"../../intercept/tests/loader_probe.c", "-ldl")
	g.must(compile)
	return bundle
}

func (g *gpuNode) copyTo(bundle, source, destination string) {
	g.t.Helper()
	content, err := os.ReadFile(source)
	must.NoError(g.t, err)
	runtimetest.WriteFile(g.t, filepath.Join(bundle, "rootfs", destination), string(content))
}

func link(t *testing.T, bundle, target, at string) {
	t.Helper()
	at = filepath.Join(bundle, "rootfs", at)
	must.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
	must.NoError(t, os.Symlink(target, at))
}

// editSpec changes the spec of a bundle.
func editSpec(t *testing.T, bundle string, edit func(*specs.Spec)) {
	t.Helper()
	file := filepath.Join(bundle, "config.json")
	var spec specs.Spec
	must.NoError(t, json.Unmarshal([]byte(readFile(t, file)), &spec))
	edit(&spec)
	content, err := json.Marshal(spec)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(file, content, 0o644))
}

const compat = "/usr/local/cuda-12.4/compat"

// copyCases are the ways in which a copy of the driver gets into a container, and by which a program there finds it.
var copyCases = []struct {
	name  string
	env   []string
	probe string // what the program opens
	lay   func(t *testing.T, g *gpuNode, bundle string)
}{{
	name:  "compat first in LD_LIBRARY_PATH",
	env:   []string{"LD_LIBRARY_PATH=/usr/local/cuda/compat:/usr/local/nvidia/lib64"},
	probe: "libcuda.so.1",
	lay:   layCompat,
}, {
	name:  "compat by its path",
	probe: "/usr/local/cuda/compat/libcuda.so.1",
	lay:   layCompat,
}, {
	name:  "compat by its versioned path",
	probe: compat + "/libcuda.so.575.51.03",
	lay:   layCompat,
}, {
	name:  "compat deeper down, by a link that is made when the container starts",
	env:   []string{"LD_LIBRARY_PATH=/usr/local/cuda/compat/lib", "PRE=busybox ln -s lib.real /usr/local/cuda/compat/lib"},
	probe: "libcuda.so.1",
	lay: func(t *testing.T, g *gpuNode, bundle string) {
		g.copyTo(bundle, g.driver(), compat+"/lib.real/libcuda.so.575.51.03")
		link(t, bundle, "libcuda.so.575.51.03", compat+"/lib.real/libcuda.so.1")
		link(t, bundle, "/usr/local/cuda-12.4", "/usr/local/cuda")
	},
}, {
	name:  "the image's ld.so.conf and cache",
	probe: "libcuda.so.1",
	lay: func(t *testing.T, g *gpuNode, bundle string) {
		g.copyTo(bundle, g.driver(), "/opt/forward/libcuda.so.1")
		runtimetest.WriteFile(t, filepath.Join(bundle, "rootfs/etc/ld.so.conf"), "include ld.so.conf.d/*.conf\n")
		runtimetest.WriteFile(t, filepath.Join(bundle, "rootfs/etc/ld.so.conf.d/a.conf"), "/opt/forward\n"+runtimetest.LibDir+"\n")
		g.must(exec.Command("ldconfig", "-r", filepath.Join(bundle, "rootfs")))
	},
}, {
	name:  "the image's cache only",
	probe: "libcuda.so.1",
	lay: func(t *testing.T, g *gpuNode, bundle string) {
		g.copyTo(bundle, g.driver(), "/opt/forward/libcuda.so.1")
		runtimetest.WriteFile(t, filepath.Join(bundle, "rootfs/etc/ld.so.conf"), "/opt/forward\n"+runtimetest.LibDir+"\n")
		g.must(exec.Command("ldconfig", "-r", filepath.Join(bundle, "rootfs")))
		must.NoError(t, os.Remove(filepath.Join(bundle, "rootfs/etc/ld.so.conf")))
	},
}, {
	name:  "the image's cache, of the old format only",
	probe: "libcuda.so.1",
	lay: func(t *testing.T, g *gpuNode, bundle string) {
		g.copyTo(bundle, g.driver(), "/opt/forward/libcuda.so.1")
		runtimetest.WriteFile(t, filepath.Join(bundle, "rootfs/etc/ld.so.conf"), "/opt/forward\n"+runtimetest.LibDir+"\n")
		g.must(exec.Command("ldconfig", "-c", "old", "-r", filepath.Join(bundle, "rootfs")))
		must.NoError(t, os.Remove(filepath.Join(bundle, "rootfs/etc/ld.so.conf")))
	},
}, {
	name:  "compat by a link through /proc",
	env:   []string{"LD_LIBRARY_PATH=/usr/local/cuda/compat"},
	probe: "libcuda.so.1",
	lay: func(t *testing.T, g *gpuNode, bundle string) {
		g.copyTo(bundle, g.driver(), "/opt/real/libcuda.so.1")
		link(t, bundle, "/proc/self/root/opt/real", "/usr/local/cuda/compat")
	},
}, {
	name:  "preloaded, under another name",
	probe: "libcuda.so.1",
	lay: func(t *testing.T, g *gpuNode, bundle string) {
		g.copyTo(bundle, g.driver(), "/opt/real/tool.so")
		runtimetest.WriteFile(t, filepath.Join(bundle, "rootfs/etc/ld.so.preload"), "/opt/real/tool.so\n")
	},
}, {
	name:  "the driver behind the shadow, preloaded",
	env:   []string{"LD_PRELOAD=" + runtimetest.LibDir + "/.tranche/driver-libcuda.so"},
	probe: "libcuda.so.1",
	lay:   func(*testing.T, *gpuNode, string) {},
}, {
	name:  "a link to the driver behind the shadow",
	env:   []string{"LD_LIBRARY_PATH=/opt/links"},
	probe: "libcuda.so.1",
	lay: func(t *testing.T, _ *gpuNode, bundle string) {
		link(t, bundle, runtimetest.LibDir+"/.tranche/driver-libcuda.so", "/opt/links/libcuda.so.1")
	},
}, {
	name:  "an older driver beside the mounted one",
	probe: runtimetest.LibDir + "/libcuda.so.535.1",
	lay: func(_ *testing.T, g *gpuNode, bundle string) {
		g.copyTo(bundle, g.driver(), runtimetest.LibDir+"/libcuda.so.535.1")
	},
}, {
	name:  "a directory for particular processors",
	probe: runtimetest.LibDir + "/glibc-hwcaps/x86-64-v2/libcuda.so.1",
	lay: func(_ *testing.T, g *gpuNode, bundle string) {
		g.copyTo(bundle, g.driver(), runtimetest.LibDir+"/glibc-hwcaps/x86-64-v2/libcuda.so.1")
	},
}, {
	name:  "two names of one file",
	probe: "/usr/local/lib/libcuda.so.1",
	lay: func(t *testing.T, g *gpuNode, bundle string) {
		layCompat(t, g, bundle)
		must.NoError(t, os.MkdirAll(filepath.Join(bundle, "rootfs/usr/local/lib"), 0o755))
		must.NoError(t, os.Link(filepath.Join(bundle, "rootfs", compat, "libcuda.so.575.51.03"),
			filepath.Join(bundle, "rootfs/usr/local/lib/libcuda.so.1")))
	},
}, {
	name:  "a link in another directory to the mounted driver",
	env:   []string{"LD_LIBRARY_PATH=/opt/links"},
	probe: "libcuda.so.1",
	lay: func(t *testing.T, _ *gpuNode, bundle string) {
		link(t, bundle, runtimetest.LibDir+"/libcuda.so.1", "/opt/links/libcuda.so.1")
	},
}, {
	name:  "a read-only volume",
	env:   []string{"LD_LIBRARY_PATH=/opt/volume"},
	probe: "libcuda.so.1",
	lay: func(t *testing.T, g *gpuNode, bundle string) {
		volume := t.TempDir()
		must.NoError(t, os.MkdirAll(filepath.Join(bundle, "rootfs/opt/volume"), 0o755))
		runtimetest.WriteFile(t, filepath.Join(volume, "libcuda.so.1"), readFile(t, g.driver()))
		editSpec(t, bundle, func(spec *specs.Spec) {
			spec.Mounts = append(spec.Mounts, specs.Mount{
				Destination: "/opt/volume", Type: "bind", Source: volume, Options: []string{"ro", "rbind"},
			})
		})
	},
}, {
	name:  "a hook that mounts it when the container's mounts are made",
	probe: "/usr/lib/libcuda.so.575.51.03",
	lay: func(_ *testing.T, g *gpuNode, bundle string) {
		g.mountByHook(bundle, "/usr/lib/libcuda.so.575.51.03")
	},
}, {
	name:  "a root that is read-only",
	env:   []string{"LD_LIBRARY_PATH=/usr/local/cuda/compat"},
	probe: "libcuda.so.1",
	lay: func(t *testing.T, g *gpuNode, bundle string) {
		layCompat(t, g, bundle)
		for _, dir := range []string{"proc", "dev", ".tranche", "run/simgpu", "usr/bin", runtimetest.LibDir} {
			must.NoError(t, os.MkdirAll(filepath.Join(bundle, "rootfs", dir), 0o755))
		}
		editSpec(t, bundle, func(spec *specs.Spec) { spec.Root.Readonly = true })
	},
}, {
	name:  "a user namespace",
	env:   []string{"LD_LIBRARY_PATH=/usr/local/cuda/compat"},
	probe: "libcuda.so.1",
	lay: func(t *testing.T, g *gpuNode, bundle string) {
		layCompat(t, g, bundle)
		g.inUserNamespace(bundle)
	},
}}

// mountByHook has a hook mount the driver, as NVIDIA's legacy one does.
func (g *gpuNode) mountByHook(bundle, destination string) {
	g.t.Helper()
	at := filepath.Join(bundle, "rootfs", destination)
	runtimetest.WriteFile(g.t, at, "")
	hook := filepath.Join(g.t.TempDir(), "legacy-hook")
	runtimetest.WriteFile(g.t, hook, `#!/bin/sh
pid=$(sed -n 's/.*"pid":\([0-9]*\).*/\1/p')
exec nsenter --target "$pid" --mount mount --bind `+g.driver()+" "+at+"\n")
	editSpec(g.t, bundle, func(spec *specs.Spec) {
		spec.Hooks = &specs.Hooks{Prestart: []specs.Hook{{ //nolint:staticcheck // as NVIDIA's legacy hook is
			Path: hook, Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
		}}}
	})
}

// layCompat puts a driver's library where CUDA's images have that of a newer driver.
func layCompat(t *testing.T, g *gpuNode, bundle string) {
	g.copyTo(bundle, g.driver(), compat+"/libcuda.so.575.51.03")
	link(t, bundle, "libcuda.so.575.51.03", compat+"/libcuda.so.1")
	link(t, bundle, "libcuda.so.1", compat+"/libcuda.so")
	link(t, bundle, "/usr/local/cuda-12.4", "/usr/local/cuda")
}

// inUserNamespace gives the container a user namespace whose IDs begin at 100000, and the files of its image to them.
func (g *gpuNode) inUserNamespace(bundle string) {
	g.t.Helper()
	const first = 100_000
	editSpec(g.t, bundle, func(spec *specs.Spec) {
		ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: first, Size: 65536}}
		spec.Linux.UIDMappings, spec.Linux.GIDMappings = ids, ids
		spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
	})
	g.must(exec.Command("chown", "--recursive", "--no-dereference", fmt.Sprintf("%d:%d", first, first),
		filepath.Join(bundle, "rootfs")))
	// A runtime can't make device nodes in a user namespace, and takes them from the host's /dev, which has none here. The
	// simulator is content with a file that can be opened.
	device := filepath.Join(g.cfg.DriverRoot, "device")
	runtimetest.WriteFile(g.t, device, "")
	must.NoError(g.t, os.Chmod(device, 0o666))
	specFile := filepath.Join(g.cfg.DriverRoot, "etc/cdi/simulated-gpu.json")
	node := regexp.MustCompile(`\{"path":"(/dev/nvidia[^"]*)","hostPath":"[^"]*","permissions":"rw"\}`)
	content := node.ReplaceAllString(readFile(g.t, specFile),
		`{"hostPath":"`+device+`","containerPath":"$1","options":["rw","bind"]}`)
	content = strings.ReplaceAll(content, `"deviceNodes":`, `"mounts":`)
	content = strings.Replace(content, `}],"mounts":[{`, `},{`, 1)
	must.NoError(g.t, os.WriteFile(specFile, []byte(content), 0o644))
	// Its root has to reach the bundle, the shadow libraries and the hook by their paths.
	hook, err := filepath.EvalSymlinks(g.cfg.HookPath)
	must.NoError(g.t, err)
	for _, dir := range []string{bundle, filepath.Dir(g.cfg.HookPath), filepath.Dir(hook)} {
		for ; dir != "/"; dir = filepath.Dir(dir) {
			g.must(exec.Command("chmod", "a+x", dir))
		}
	}
}

func TestCopies(t *testing.T) {
	for _, next := range []string{"runc", "crun"} {
		for _, tc := range copyCases {
			t.Run(next+"/"+tc.name, func(t *testing.T) {
				g := newGPUNode(t, next)
				bundle := g.glibcImage("b", `$PRE; probe lazy dlsym `+tc.probe, tc.env...)
				tc.lay(t, g, bundle)
				before := tree(t, bundle)
				must.Eq(t, "shadow\n", g.must(g.oci("run", "--bundle", bundle, "c1")))
				must.Between(t, 1, g.peakMiB(), limitMiB)
				if !strings.Contains(tc.name, "container starts") { // which that container does itself
					must.Eq(t, before, tree(t, bundle), must.Sprint("the image was changed"))
				}
			})
		}
	}
}

// An image whose loader would search where only a running process can tell does not start.
func TestCopies_Undecided(t *testing.T) {
	for _, next := range []string{"runc", "crun"} {
		t.Run(next, func(t *testing.T) {
			g := newGPUNode(t, next)
			bundle := g.glibcImage("b", "probe lazy dlsym libcuda.so.1", "LD_LIBRARY_PATH=/usr/local/cuda/compat")
			g.copyTo(bundle, g.driver(), "/opt/real/libcuda.so.1")
			link(t, bundle, "/proc/1/root/opt/real", "/usr/local/cuda/compat")
			stderr := g.fails(g.oci("run", "--bundle", bundle, "c1"))
			if next == "runc" { // crun does not pass on what a hook says
				must.StrContains(t, stderr, "/usr/local/cuda/compat: it leads through process 1 in /proc")
			}
			must.Zero(t, g.peakMiB())
		})
	}
}

// The copies would do what they are shadowed for: without the shadow, the limit does not hold.
func TestCopies_ThatAreNotShadowed(t *testing.T) {
	g := newGPUNode(t, "runc")
	bundle := g.glibcImage("b", "probe lazy dlsym /elsewhere/libcuda.so.1")
	g.copyTo(bundle, g.driver(), "/elsewhere/libcuda.so.1")
	must.Eq(t, "past\n", g.must(g.oci("run", "--bundle", bundle, "c1")))
	must.Greater(t, limitMiB, g.peakMiB())
}

// tree lists the image's files with their kinds, owners and sizes, but for where the runtime itself makes mount points.
func tree(t *testing.T, bundle string) []string {
	t.Helper()
	cmd := exec.Command("find", "rootfs", "-path", "rootfs/usr/local*", "-printf", `%p %y %U %s %T@\n`,
		"-o", "-path", "rootfs/opt*", "-printf", `%p %y %U %s %T@\n`, "-o", "-path", "rootfs/etc*", "-printf", `%p %y %s\n`)
	cmd.Dir = bundle
	list, err := cmd.Output()
	must.NoError(t, err)
	return strings.Split(string(list), "\n")
}
