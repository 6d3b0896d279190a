package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/health"
	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/claim/region"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/e2e/node"
	"github.com/tranche-gpu/tranche/governor/keeper"
	"github.com/tranche-gpu/tranche/governor/status"
	"github.com/tranche-gpu/tranche/internal/needs"
	"github.com/tranche-gpu/tranche/runtime"
	"github.com/tranche-gpu/tranche/runtime/edit"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// healthy is a node with nothing wrong: its GPUs are simulated, what is in its root besides is made up, and the shadow
// libraries, NVML, the ledger and the next runtime are real.
type healthy struct {
	*Node
	t      *testing.T
	build  string
	claim  *claim.Claim
	ledger *claim.Ledger
}

func newHealthy(t *testing.T) *healthy {
	t.Helper()
	needs.Sandbox(t, "to make device nodes")
	build := os.Getenv("TRANCHE_BUILD")
	t.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin")
	h := &healthy{t: t, build: build}
	root := t.TempDir()
	sim := node.NewSim(build, filepath.Join(root, "driver"))
	must.NoError(t, os.MkdirAll(sim.Root, 0o755))
	must.NoError(t, sim.LayOut(t.Context(), "../../../e2e/simgpu/topologies/h200x2.conf"))
	for _, setting := range sim.Env() {
		name, value, _ := strings.Cut(setting, "=")
		t.Setenv(name, value)
	}
	state, err := os.MkdirTemp("/var/lib", "tranche-doctor") // in the sandbox /run and TMPDIR are in memory
	must.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(state) })
	built, err := shadow.Version(filepath.Join(build, "lib/libcuda.so.1"))
	must.NoError(t, err)
	h.Node = &Node{
		Program: filepath.Join(root, "usr/bin/tranche"), Version: built,
		Root: root, ConfigFile: filepath.Join(root, "etc/tranche/config.toml"),
		RuntimePath: filepath.Join(root, "usr/bin/tranche-runtime"),
		Config: runtime.Config{
			Node: edit.Node{
				DriverRoot: sim.Root, ShadowDir: filepath.Join(root, "usr/lib/tranche"),
				HookPath: filepath.Join(root, "usr/bin/tranche-hook"), CLIPath: filepath.Join(root, "usr/bin/tranche"),
				StateDir: state, RunDir: t.TempDir(),
			},
			Runtime: "runc",
		}.WithDefaults(),
	}
	library := nvml.New(sim.Root)
	t.Cleanup(func() { _ = library.Close(context.Background()) })
	h.ReadGPUs = library.Read
	h.ProbeLimits = func(context.Context, string) error { return errors.New("Not Supported") }
	h.fill()
	h.hold()
	return h
}

// fill writes what a node has besides.
func (h *healthy) fill() {
	for file, text := range map[string]string{
		"/proc/sys/kernel/osrelease":         "6.1.0-39-amd64\n",
		"/proc/sys/user/max_user_namespaces": "15000\n",
		"/proc/filesystems":                  "nodev\tproc\nnodev\toverlay\n",
		"/proc/driver/nvidia/version":        "NVRM version: NVIDIA UNIX Open Kernel Module  570.124.06  Release Build\n",
		"/sys/fs/cgroup/cgroup.controllers":  "cpuset cpu io memory pids\n",
		"/etc/tranche/config.toml":           "",
		"/etc/docker/daemon.json":            `{"runtimes": {"tranche": {"path": "` + h.RuntimePath + `"}}}`,
		"/etc/containerd/config.toml":        "version = 2\n",
		"/etc/containers/containers.conf":    "[engine]\n",
		"/etc/nomad.d/nomad.hcl": "plugin_dir = \"/opt/plugins\"\nplugin \"nomad-driver-tranche\" {}\n" +
			"telemetry {\n publish_allocation_metrics = true\n}\n",
	} {
		h.write(file, text, 0o644)
	}
	for _, program := range []string{
		"/usr/bin/tranche-runtime", "/usr/bin/tranche-hook", "/usr/bin/tranche",
		"/usr/bin/dockerd", "/usr/bin/containerd", "/usr/bin/podman",
		"/opt/plugins/nomad-device-tranche", "/opt/plugins/nomad-driver-tranche",
	} {
		h.write(program, "#!/bin/sh\necho version "+h.Version+"\n", 0o755)
	}
	for _, file := range shadow.Files() {
		content, err := os.ReadFile(filepath.Join(h.build, "lib", file))
		must.NoError(h.t, err)
		h.write("/usr/lib/tranche/"+file, string(content), 0o644)
	}
	socket := h.path("/run/containerd/containerd.sock")
	must.NoError(h.t, os.MkdirAll(filepath.Dir(socket), 0o755))
	listener, err := net.Listen("unix", socket)
	must.NoError(h.t, err)
	h.t.Cleanup(func() { _ = listener.Close() })
}

// hold makes a claim and binds it to a container that lives, with its region.
func (h *healthy) hold() {
	var err error
	h.ledger, err = claim.Open(claim.Options{StateDir: h.Config.StateDir, RunDir: h.Config.RunDir})
	must.NoError(h.t, err)
	h.claim, _, err = h.ledger.Reserve(h.t.Context(), claim.Request{
		GPU: claim.GPU{UUID: "GPU-1"}, Slices: []string{"GPU-1/slice-0"}, LimitBytes: 1 << 30, Owner: claim.OwnerNomad,
	})
	must.NoError(h.t, err)
	dir, err := h.ledger.PrepareRegion(h.t.Context(), h.claim.ID, "web", 0)
	must.NoError(h.t, err)
	h.t.Cleanup(func() { must.NoError(h.t, region.Remove(dir)) }) // It is a mount.
	must.NoError(h.t, h.ledger.Bind(h.t.Context(), h.claim.ID,
		claim.Container{ID: "web", Runtime: "runc", InitPID: os.Getpid()}))
}

func (h *healthy) write(name, text string, mode os.FileMode) {
	h.t.Helper()
	must.NoError(h.t, os.MkdirAll(filepath.Dir(h.path(name)), 0o755))
	must.NoError(h.t, os.WriteFile(h.path(name), []byte(text), mode))
	must.NoError(h.t, os.Chmod(h.path(name), mode))
}

// plugin puts a real plugin in place of the one that only says its version.
func (h *healthy) plugin(name string) {
	h.t.Helper()
	h.remove("/opt/plugins/" + name)
	must.NoError(h.t, os.Symlink(filepath.Join(h.build, "bin", name), h.path("/opt/plugins/"+name)))
}

// deviceBlock gives the real device plugin a block with an option.
func (h *healthy) deviceBlock(option string) {
	h.t.Helper()
	h.plugin("nomad-device-tranche")
	h.write("/etc/nomad.d/a.hcl", "plugin \"nomad-device-tranche\" {\n config {\n"+option+"\n"+
		fmt.Sprintf("driver_root = %q\nstate_dir = %q\nrun_dir = %q\n", h.Config.DriverRoot, h.Config.StateDir, h.Config.RunDir)+"}\n}\n", 0o644)
}

// addressing has the simulated driver say how its GPUs use memory of malloc.
func (h *healthy) addressing(mode string) {
	h.t.Helper()
	file := filepath.Join(h.Config.DriverRoot, "run/simgpu/topology")
	text, err := os.ReadFile(file)
	must.NoError(h.t, err)
	changed := strings.ReplaceAll(string(text), "\nminor =", "\naddressing_mode = "+mode+"\nminor =")
	must.NotEq(h.t, string(text), changed)
	must.NoError(h.t, os.WriteFile(file, []byte(changed), 0o644))
}

// writeRun writes a file of the run directory.
func (h *healthy) writeRun(name, text string) {
	must.NoError(h.t, os.WriteFile(filepath.Join(h.Config.RunDir, name), []byte(text), 0o644))
}

// governed starts a program as the governor, as the device plugin does, and returns its process.
func (h *healthy) governed(program string) *keeper.Governor {
	h.t.Helper()
	ctx, cancel := context.WithCancel(h.t.Context())
	runs := make(chan struct{}, 1)
	var k *keeper.Keeper
	k = keeper.New(keeper.Options{
		Program: program, RunDir: h.Config.RunDir, StateDir: h.Config.StateDir, DriverRoot: h.Config.DriverRoot,
		Logger: hclog.NewNullLogger(), Changed: func() {
			if k.Problem() == "" {
				runs <- struct{}{}
			}
		},
	})
	var running sync.WaitGroup
	running.Go(func() { k.Run(ctx) })
	<-runs
	cancel()
	running.Wait()
	g, err := keeper.Find(h.Config.RunDir, program)
	must.NoError(h.t, err)
	must.NotNil(h.t, g)
	h.t.Cleanup(func() { _ = g.Signal(syscall.SIGKILL); _ = g.Wait(context.Background()) })
	return g
}

// shared has a GPU whose claims compute in turns.
func (h *healthy) shared() {
	h.t.Helper()
	must.NoError(h.t, layout.Write(h.Config.RunDir, map[string]layout.GPU{"GPU-1": {Shares: true}}))
}

func (h *healthy) remove(name string) { must.NoError(h.t, os.RemoveAll(h.path(name))) }

func TestHealthyNode(t *testing.T) {
	for _, r := range newHealthy(t).Examine(t.Context()) {
		must.Eq(t, OK, r.State, must.Sprintf("%+v", r))
		must.NotEq(t, "", r.Found)
		must.NotEq(t, "", r.Looked)
		must.Eq(t, "", r.Remedy)
	}
}

// HMM that is turned off, or that the kernel's module does not have, leaves the memory of malloc where it is.
func TestHealthyNode_MemoryOfMalloc(t *testing.T) {
	const parameter = "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm"
	for name, do := range map[string]func(h *healthy){
		"by the driver": func(h *healthy) {
			h.addressing("none")
			h.write(parameter, "N\n", 0o644)
		},
		"turned off": func(h *healthy) { h.write(parameter, "Y\n", 0o644) },
		"closed modules": func(h *healthy) {
			h.write(parameter, "N\n", 0o644)
			h.write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  x\n", 0o644)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHealthy(t)
			do(h)
			for _, r := range h.Examine(t.Context()) {
				must.Eq(t, OK, r.State, must.Sprintf("%+v", r))
			}
		})
	}
}

// A claim without a limit has no region, and nothing is missing.
func TestHealthyNode_Unlimited(t *testing.T) {
	h := newHealthy(t)
	c, _, err := h.ledger.Reserve(t.Context(), claim.Request{
		GPU: claim.GPU{UUID: "GPU-3"}, Slices: []string{"GPU-3"}, LimitBytes: 1 << 30, Owner: claim.OwnerNomad,
		Mode: claim.ModeExclusive,
	})
	must.NoError(t, err)
	must.NoError(t, h.ledger.Bind(t.Context(), c.ID, claim.Container{ID: "all", Runtime: "runc", InitPID: os.Getpid()}))
	for _, r := range h.Examine(t.Context()) {
		must.Eq(t, OK, r.State, must.Sprintf("%+v", r))
	}
}

func TestHealthyNode_Governor(t *testing.T) {
	h := newHealthy(t)
	h.shared()
	h.Program = filepath.Join(h.build, "bin/tranche")
	g := h.governed(h.Program)
	f := governor(t.Context(), h.Node)
	must.Eq(t, finding{OK, filepath.Join(h.Config.RunDir, "governor"), fmt.Sprintf("process %d runs", g.PID), ""}, f,
		must.Cmp(cmp.AllowUnexported(finding{})))
}

// Each thing is broken once, and the check that is about it says so, with how to mend it.
func TestEachFault(t *testing.T) {
	for name, c := range map[string]struct {
		do            func(h *healthy)
		check         string // group/check
		state         State
		found, remedy string
	}{
		"old kernel": {
			func(h *healthy) { h.write("/proc/sys/kernel/osrelease", "4.18.0-553.el8", 0o644) },
			"kernel/version", Fault, "4.18.0", "Linux 5.6 or newer",
		},
		"no user namespaces": {
			func(h *healthy) { h.write("/proc/sys/user/max_user_namespaces", "0", 0o644) },
			"kernel/user namespaces", Warning, "0", "sysctl user.max_user_namespaces",
		},
		"no overlay": {
			func(h *healthy) { h.write("/proc/filesystems", "nodev\tproc\n", 0o644) },
			"kernel/overlay", Warning, "no overlay", "modprobe overlay",
		},
		"no cgroups": {
			func(h *healthy) { h.remove("/sys/fs/cgroup") }, "cgroups/controllers", Fault, "no cgroups", "mount them",
		},
		"cgroups 2 without memory": {
			func(h *healthy) { h.write("/sys/fs/cgroup/cgroup.controllers", "cpu pids\n", 0o644) },
			"cgroups/controllers", Fault, "version 2 without memory", "cgroup_enable=memory",
		},
		"cgroups 1 without devices": {
			func(h *healthy) {
				h.remove("/sys/fs/cgroup")
				for _, name := range []string{"cpu,cpuacct", "memory", "pids"} {
					must.NoError(h.t, os.MkdirAll(h.path("/sys/fs/cgroup/"+name), 0o755))
				}
			},
			"cgroups/controllers", Fault, "version 1 without devices", "have the kernel offer them",
		},
		"cgroups without pids": {
			func(h *healthy) { h.write("/sys/fs/cgroup/cgroup.controllers", "cpu memory\n", 0o644) },
			"cgroups/controllers", Warning, "without pids", "have the kernel offer them",
		},
		"no driver": {
			func(h *healthy) { h.remove("/driver/usr/lib") },
			"driver/library", Fault, "no libcuda.so.1 in the driver root", "install NVIDIA's driver",
		},
		"no kernel module": {
			func(h *healthy) { h.remove("/proc/driver") }, "driver/kernel module", Warning, "absent", "modprobe nvidia",
		},
		"limits by the driver": {
			func(h *healthy) { h.Config.Enforcement = claim.EnforcementDriver },
			"driver/memory limits", Fault, "cannot limit memory on GPU 0: Not Supported", "docs/enforcement.md",
		},
		"a deaf device plugin": {
			func(h *healthy) {
				missed := &health.Condition{Problem: "NVML could not wait for events: Unknown Error", Since: time.Unix(0, 0)}
				must.NoError(h.t, health.Write(h.Config.RunDir, health.Report{Events: missed}))
			},
			"driver/Xid errors", Warning, "misses Xid errors since 1970-01-01T00:00:00Z: NVML could not wait for events",
			"restart the Nomad agent",
		},
		"a damaged report of health": {
			func(h *healthy) { h.writeRun(health.FileName, "{") }, "driver/Xid errors", Warning, "reading which GPUs are unhealthy", "as it says",
		},
		"another driver's kernel module": {
			func(h *healthy) {
				h.write("/proc/driver/nvidia/version", "NVRM version: NVIDIA  535.54.03  x\n", 0o644)
			},
			"driver/kernel module", Fault, "but the libraries are 570.124.06", "reboot",
		},
		"no NVML": {
			func(h *healthy) {
				h.ReadGPUs = func(context.Context) (*nvml.Node, error) { return nil, errors.New("driver not loaded") }
			},
			"driver/NVML", Fault, "driver not loaded", "nvidia-smi",
		},
		"a GPU that fell off the bus": {
			func(h *healthy) {
				h.ReadGPUs = func(context.Context) (*nvml.Node, error) {
					return &nvml.Node{Failed: []nvml.Failure{{Index: 3, Err: errors.New("GPU is lost")}}}, nil
				}
			},
			"driver/NVML", Fault, "GPU 3 does not answer: GPU is lost", "reset",
		},
		"no GPUs": {
			func(h *healthy) {
				h.ReadGPUs = func(context.Context) (*nvml.Node, error) { return &nvml.Node{}, nil }
			},
			"driver/NVML", Fault, "no GPUs", "lspci",
		},
		"no device node": {
			func(h *healthy) { h.remove("/driver/dev/nvidia-uvm") },
			"driver/device nodes", Fault, "nvidia-uvm is no device node", "nvidia-modprobe",
		},
		"a file for a device node": {
			func(h *healthy) { h.remove("/driver/dev/nvidia-uvm"); h.write("/driver/dev/nvidia-uvm", "", 0o644) },
			"driver/device nodes", Fault, "nvidia-uvm is no device node", "nvidia-modprobe",
		},
		"HMM": {
			func(h *healthy) { h.addressing("hmm") }, "driver/memory of malloc", Warning, "(HMM)", "uvm_disable_hmm=1",
		},
		"ATS": {
			func(h *healthy) { h.addressing("ats") }, "driver/memory of malloc", Warning, "(ATS)", "uvm_ats_mode=0",
		},
		"HMM with an older driver": {
			func(h *healthy) { h.write("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm", "N\n", 0o644) },
			"driver/memory of malloc", Warning, "may use memory of malloc (HMM)", "uvm_disable_hmm=1",
		},
		"broken CDI": {
			func(h *healthy) { h.write("/driver/etc/cdi/broken.json", "{", 0o644) },
			"CDI/specifications", Fault, "broken.json", "nvidia-ctk cdi generate",
		},
		"CDI for one GPU of two": {
			func(h *healthy) { h.write("/driver/etc/cdi/simulated-gpu.json", cdiFor(h, 1, "/etc/hostname"), 0o644) },
			"CDI/GPUs", Warning, "but not GPU-", "nvidia-ctk cdi generate",
		},
		"CDI of an older driver": {
			func(h *healthy) {
				h.write("/driver/etc/cdi/simulated-gpu.json", cdiFor(h, 2, "/usr/lib/libcuda.so.1.0"), 0o644)
			},
			"CDI/files", Fault, "it mounts /usr/lib/libcuda.so.1.0, which is absent", "older than the driver",
		},
		"broken configuration": {
			func(h *healthy) { h.ConfigErr = errors.New("line 3, column 1") },
			"runtimes/configuration", Fault, "line 3", "correct the file",
		},
		"settings that the agent does not accept": {
			func(h *healthy) { h.AgentErr = errors.New("idle.policy must be") },
			"runtimes/configuration", Fault, "idle.policy", "tranche-agent does not start",
		},
		"no runtime": {
			func(h *healthy) { h.remove("/usr/bin/tranche-runtime") },
			"runtimes/tranche-runtime", Fault, "no such file", "tranche install --from",
		},
		"a runtime that is not executable": {
			func(h *healthy) { h.write("/usr/bin/tranche-runtime", "", 0o644) },
			"runtimes/tranche-runtime", Fault, "not executable", "tranche install --from",
		},
		"a hook where nothing may be executed": {
			func(h *healthy) {
				dir := h.t.TempDir()
				must.NoError(h.t, unix.Mount("none", dir, "tmpfs", unix.MS_NOEXEC, ""))
				h.t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
				h.Config.HookPath = filepath.Join(dir, "tranche-hook")
				must.NoError(h.t, os.WriteFile(h.Config.HookPath, nil, 0o755))
			},
			"runtimes/hook", Fault, "mounted noexec", "hook_path",
		},
		"no command to ask NVML": {
			func(h *healthy) { h.remove("/usr/bin/tranche") }, "runtimes/tranche", Fault, "no such file", "cli_path",
		},
		"none of the next runtimes": {
			func(h *healthy) { h.Config.Runtime, h.Config.Runtimes = "", []string{"youki", "kata"} },
			"runtimes/next runtime", Fault, "kata", "set runtimes",
		},
		"no next runtime": {
			func(h *healthy) { h.Config.Runtime = "youki" }, "runtimes/next runtime", Fault, "youki", "install runc or crun",
		},
		"itself as the next runtime": {
			func(h *healthy) { h.Config.Runtime = h.RuntimePath },
			"runtimes/next runtime", Fault, "tranche-runtime itself", "set runtimes in",
		},
		"a next runtime that fails": {
			func(h *healthy) {
				h.write("/usr/bin/runc", "#!/bin/sh\necho cannot open shared object >&2; exit 127\n", 0o755)
				h.Config.Runtime = h.path("/usr/bin/runc")
			},
			"runtimes/next runtime", Fault, "cannot open shared object", "anew",
		},
		"a hook that others may write": {
			func(h *healthy) { h.write("/usr/bin/tranche-hook", "", 0o777) },
			"runtimes/permissions", Fault, "others than root may write it", "chmod go-w",
		},
		"a configuration of another user": {
			func(h *healthy) { must.NoError(h.t, os.Chown(h.ConfigFile, 1000, 1000)) },
			"runtimes/permissions", Fault, "belongs to user 1000", "chown root",
		},
		"the driver for the shadow": {
			func(h *healthy) {
				driver, err := os.ReadFile(filepath.Join(h.build, "sim/lib/libcuda.so.1"))
				must.NoError(h.t, err)
				h.write("/usr/lib/tranche/libcuda.so.1", string(driver), 0o644)
			},
			"shadow libraries/libcuda.so.1", Fault, "is no shadow library of Tranche", "tranche install --from",
		},
		"no room to try the shadow": {
			func(h *healthy) { h.t.Setenv("TMPDIR", "/nowhere") },
			"shadow libraries/libcuda.so.1", Warning, "whether it loads was not tried", "temporary files",
		},
		"a shadow that does not load": {
			func(h *healthy) { unresolved(h, "libnvidia-ml.so.1") },
			"shadow libraries/libnvidia-ml.so.1", Fault, "it cannot be loaded", "built for another machine",
		},
		"an upgrade that was not finished": {
			func(h *healthy) { h.write("/usr/bin/tranche-hook", "#!/bin/sh\necho version v0.0.1\n", 0o755) },
			"versions/programs and libraries", Warning, "tranche-hook has v0.0.1", "finish the upgrade",
		},
		"Docker's configuration broken": {
			func(h *healthy) { h.write("/etc/docker/daemon.json", "{,}", 0o644) },
			"engines/docker", Fault, "is no JSON object", "docker does not start",
		},
		"containerd configured elsewhere": {
			func(h *healthy) {
				file := "/etc/containerd/config.toml"
				h.write("/srv/containerd.toml", "version = 2\n", 0o644)
				h.remove(file)
				must.NoError(h.t, os.MkdirAll(filepath.Dir(h.path(file)), 0o755))
				must.NoError(h.t, os.Symlink(h.path("/srv/containerd.toml"), h.path(file)))
			},
			"engines/containerd", OK, "/srv/containerd.toml", "",
		},
		"Docker with a runtime that is gone": {
			func(h *healthy) {
				h.write("/etc/docker/daemon.json", `{"runtimes": {"tranche": {"path": "/nowhere/r"}}}`, 0o644)
			},
			"engines/docker", Fault, "it names /nowhere/r as runtime", "tranche install docker --runtime-path",
		},
		"containerd with a runtime that is gone": {
			func(h *healthy) {
				h.write("/etc/containerd/config.toml", "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd."+
					"runtimes.tranche.options]\nBinaryName = \"/nowhere/r\"\n", 0o644)
			},
			"engines/containerd", Fault, "it names /nowhere/r as runtime", "tranche install containerd",
		},
		"Podman with a runtime that is gone": {
			func(h *healthy) {
				h.write("/etc/containers/containers.conf.d/99-tranche.conf", "[engine.runtimes]\ntranche = [\"/nowhere/r\"]\n", 0o644)
			},
			"engines/podman", Fault, "it names /nowhere/r as runtime", "tranche install podman",
		},
		"Nomad's configuration broken": {
			func(h *healthy) { h.write("/etc/nomad.d/nomad.hcl", "plugin {", 0o644) },
			"Nomad/configuration", Fault, "cannot be read", "the agent does not start",
		},
		"Nomad without a plugin that has a block": {
			func(h *healthy) { h.remove("/opt/plugins/nomad-driver-tranche") },
			"Nomad/plugins", Fault, "nomad-driver-tranche", "tranche install nomad",
		},
		"Nomad without a plugin": {
			func(h *healthy) { h.remove("/opt/plugins/nomad-device-tranche") },
			"Nomad/plugins", Warning, "nomad-device-tranche is absent", "tranche install nomad",
		},
		"Nomad that has no plugin directory": {
			func(h *healthy) { h.write("/etc/nomad.d/nomad.hcl", "", 0o644) },
			"Nomad/plugins", Warning, "neither plugin_dir nor data_dir", "set plugin_dir",
		},
		"Nomad without statistics": {
			func(h *healthy) {
				h.write("/etc/nomad.d/nomad.hcl", "plugin_dir = \"/opt/plugins\"\nplugin \"nomad-driver-tranche\" {}\n", 0o644)
			},
			"Nomad/statistics", Warning, "publish_allocation_metrics is not set", "telemetry { publish_allocation_metrics = true }",
		},
		"Nomad with a second plugin": {
			func(h *healthy) {
				h.write("/etc/nomad.d/a.hcl", "plugin \"nomad-device-tranche\" {}\nplugin \"nomad-device-nvidia\" {}\n", 0o644)
			},
			"Nomad/other device plugins", Fault, "counts GPUs twice: GPU-", "set enabled = false in one of the two blocks",
		},
		"Nomad with two plugins": {
			func(h *healthy) {
				h.write("/etc/nomad.d/a.hcl", "plugin \"nomad-device-tranche\" {\n config {\n ignored_gpu_ids = [\"GPU-51d40f7e-0c1a-4e6b-9f3d-5a1e00000000\"]\n }\n}\n"+
					"plugin \"nomad-device-nvidia\" {\n config {\n ignored_gpu_ids = [\"GPU-51d40f7e-0c1a-4e6b-9f3d-5a1e00000001\"]\n }\n}\n", 0o644)
			},
			"Nomad/other device plugins", OK, "each GPU is left to one", "",
		},
		"a mode that there is not": {
			func(h *healthy) { h.deviceBlock(`mode = "slices"`) },
			"Nomad/device plugin's options", Fault, `"slices"`, "correct the block of nomad-device-tranche",
		},
		"a GPU that there is not": {
			func(h *healthy) { h.deviceBlock(`gpu "index:9" { mode = "exclusive" }`) },
			"Nomad/device plugin's options", Fault, `gpu "index:9" matches no GPU of this node`, "correct the block",
		},
		"a misspelled option": {
			func(h *healthy) { h.deviceBlock(`slice_memmory = "1GiB"`) },
			"Nomad/device plugin's options", Fault, "there is no option slice_memmory", "correct the block",
		},
		"right options": {
			func(h *healthy) { h.deviceBlock(`gpu "index:1" { mode = "exclusive" }`) },
			"Nomad/device plugin's options", OK, "accepts its options", "",
		},
		"a wrong option of the driver": {
			func(h *healthy) {
				h.plugin("nomad-driver-tranche")
				h.write("/etc/nomad.d/a.hcl", "plugin \"nomad-driver-tranche\" {\n config {\n image_pull_timeout = \"soon\"\n }\n}\n", 0o644)
			},
			"Nomad/driver's options", Fault, "image_pull_timeout", "correct the block of nomad-driver-tranche",
		},
		"an older plugin": {
			func(h *healthy) { h.write("/opt/plugins/nomad-driver-tranche", "#!/bin/sh\nexit 1\n", 0o755) },
			"Nomad/driver's options", Warning, "were not checked", "another version",
		},
		"slices of another size outside Nomad": {
			func(h *healthy) { h.deviceBlock(`slice_memory = "2GiB"`) },
			"Nomad/slice memory", Warning, "slice_memory is 2GiB for Nomad, and 1GiB in ", "the same in both",
		},
		"a claim with slices of another size": {
			func(h *healthy) {
				h.deviceBlock(`slice_memory = "1GiB"`)
				_, _, err := h.ledger.Reserve(h.t.Context(), claim.Request{
					GPU: claim.GPU{UUID: "GPU-3"}, Slices: []string{"GPU-3/slice-0"}, SliceBytes: 512 << 20, LimitBytes: 512 << 20,
					Owner: claim.OwnerNomad,
				})
				must.NoError(h.t, err)
			},
			"Nomad/slice memory", Warning, "in the ledger has slices of 512MiB", "tranche claim release",
		},
		"no containerd for the driver": {
			func(h *healthy) { h.remove("/run/containerd") },
			"Nomad/containerd", Warning, "no such file", "systemctl start containerd",
		},
		"a broken record": {
			func(h *healthy) {
				file := filepath.Join(h.Config.StateDir, "claims", h.claim.ID+".json")
				must.NoError(h.t, os.WriteFile(file, []byte("{"), 0o600))
			},
			"ledger/records", Fault, "", "do as it says",
		},
		"a ledger that is no directory": {
			func(h *healthy) {
				must.NoError(h.t, os.RemoveAll(filepath.Join(h.Config.StateDir, "claims")))
				must.NoError(h.t, os.WriteFile(filepath.Join(h.Config.StateDir, "claims"), nil, 0o600))
			},
			"ledger/records", Fault, "not a directory", "readable",
		},
		"a container that is gone": {
			func(h *healthy) {
				sleeper := exec.Command("sleep", "1000")
				must.NoError(h.t, sleeper.Start())
				c, _, err := h.ledger.Reserve(h.t.Context(), claim.Request{
					GPU: claim.GPU{UUID: "GPU-2"}, Slices: []string{"GPU-2/slice-0"}, LimitBytes: 1 << 30, Owner: claim.OwnerNomad,
				})
				must.NoError(h.t, err)
				must.NoError(h.t, h.ledger.Bind(h.t.Context(), c.ID,
					claim.Container{ID: "lost", Runtime: "runc", InitPID: sleeper.Process.Pid}))
				must.NoError(h.t, sleeper.Process.Kill())
				_ = sleeper.Wait()
			},
			"ledger/containers", Warning, "bound to container lost, which is gone", "the next sweep",
		},
		"a region that is gone": {
			func(h *healthy) {
				must.NoError(h.t, region.Remove(filepath.Join(h.Config.RunDir, "claims", h.claim.ID)))
			},
			"ledger/regions", Fault, "container web runs and its region is gone", "start the container anew",
		},
		"a ledger in memory": {
			func(h *healthy) { h.Config.StateDir = h.t.TempDir() },
			"ledger/state directory", Fault, "lost with a reboot", "set state_dir",
		},
		"a ledger closed to the agent": {
			func(h *healthy) {
				h.write("/usr/lib/systemd/system/tranche-agent.service", "", 0o644)
				h.Config.StateDir = "/home/tranche"
			},
			"ledger/state directory", Fault, "tranche-agent.service may not write there", "not below /usr, /etc, ",
		},
		"a ledger that others may read": {
			func(h *healthy) { must.NoError(h.t, os.Chmod(filepath.Join(h.Config.StateDir, "claims"), 0o755)) },
			"ledger/state directory", Fault, "others than root may look", "chmod 700",
		},
		"no governor": {(*healthy).shared, "governor/process", Fault, "no governor runs", "systemctl enable --now tranche-governor"},
		"a governor of before an upgrade": {
			func(h *healthy) { h.governed(filepath.Join(h.build, "bin/tranche")) },
			"governor/process", Warning, "is a governor of another program than", "systemctl restart nomad",
		},
		"a governor that hangs": {
			func(h *healthy) {
				h.Program = filepath.Join(h.build, "bin/tranche")
				g := h.governed(h.Program)
				must.NoError(h.t, g.Signal(syscall.SIGSTOP))
				must.NoError(h.t, status.Write(h.Config.RunDir, status.Status{Written: time.Now().Add(-time.Hour)}))
			},
			"governor/process", Fault, "does not answer: no governor has run since", "systemctl restart nomad",
		},
		"regions on a disk": {
			func(h *healthy) { h.Config.RunDir = h.Config.StateDir },
			"ledger/run directory", Warning, "is no tmpfs", "below /run",
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHealthy(t)
			c.do(h)
			for _, r := range h.Examine(t.Context()) {
				if r.Group+"/"+r.Check == c.check {
					must.Eq(t, c.state, r.State, must.Sprintf("%+v", r))
					must.StrContains(t, r.Found+r.Looked, c.found)
					must.StrContains(t, r.Remedy, c.remedy)
					return
				}
			}
			t.Fatalf("there is no check %s", c.check)
		})
	}
}

// cdiFor is a specification for the first GPUs of the node that mounts a file.
func cdiFor(h *healthy, gpus int, mount string) string {
	read, err := h.ReadGPUs(h.t.Context())
	must.NoError(h.t, err)
	var devices []string
	for _, g := range read.GPUs[:gpus] {
		devices = append(devices, fmt.Sprintf(`{"name": %q, "containerEdits": {"mounts": [{"hostPath": %q, "containerPath": "/x"}]}}`,
			g.UUID, mount))
	}
	return `{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [` + strings.Join(devices, ",") + `]}`
}

// unresolved makes a library that looks like the shadow and needs a function that nobody has.
func unresolved(h *healthy, soname string) {
	dir := h.t.TempDir()
	stub, source := filepath.Join(dir, "stub.so"), filepath.Join(dir, "x.c")
	must.NoError(h.t, os.WriteFile(source, []byte("void nobody_has_this(void); void f(void) { nobody_has_this(); }\n"), 0o644))
	for _, args := range [][]string{
		{"-shared", "-o", stub, "-Wl,-soname,$ORIGIN/" + shadow.Behind(soname), "-x", "c", "/dev/null"},
		{
			"-shared", "-fPIC", "-Wl,-z,now", "-Wl,--no-as-needed", "-Wl,-soname," + soname, "-o",
			h.path("/usr/lib/tranche/" + soname), source, stub,
		},
	} {
		out, err := exec.Command("gcc", args...).CombinedOutput()
		must.NoError(h.t, err, must.Sprintf("%s", out))
	}
}

// No check is without a name, and none has the name of another.
func TestChecksHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range checks() {
		name := c.group + "/" + c.name
		must.False(t, seen[name], must.Sprint(name))
		must.NotEq(t, "", c.group)
		must.NotEq(t, "", c.name)
		seen[name] = true
	}
}
