package consumers

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/internal/needs"
)

const noLimit = ^uint64(0)

// newCgroup makes a cgroup in the hierarchy of cgroup v2 and returns its directory.
func newCgroup(t *testing.T) string {
	t.Helper()
	needs.Root(t, "to make a cgroup")
	mounts, err := os.ReadFile("/proc/self/mounts")
	must.NoError(t, err)
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); fields[2] == "cgroup2" {
			dir, err := os.MkdirTemp(fields[1], "simgpu-test-")
			must.NoError(t, err)
			must.NoError(t, os.Chmod(dir, 0o755))
			t.Cleanup(func() { os.Remove(dir) })
			return dir
		}
	}
	t.Fatal("no cgroup v2 is mounted")
	return ""
}

// inCgroup makes the command start in the cgroup.
func inCgroup(t *testing.T, dir string, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	fd, err := syscall.Open(dir, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	must.NoError(t, err)
	t.Cleanup(func() { syscall.Close(fd) })
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd}
	return cmd
}

// fits reports whether a program in the cgroup (nvml-hold, or the one given) gets a context of 64 MiB and `size` more.
func fits(t *testing.T, dir, size string, program ...string) bool {
	t.Helper()
	if len(program) == 0 {
		program = []string{testProgram("nvml-hold")}
	}
	out, err := inCgroup(t, dir, exec.Command(program[0], append(program[1:], size)...)).CombinedOutput()
	if err == nil {
		must.Eq(t, "holding\n", string(out))
		return true
	}
	must.Eq(t, "cuMemAlloc_v2: 2\n", string(out))
	return false
}

func TestMemoryLimits(t *testing.T) {
	migNode(t, "r615.conf")
	lib := openNVML(t)
	dev := value[nvml.Device](t)(lib.DeviceGetHandleByIndex(0))
	dir := newCgroup(t)

	_, ret := dev.GetMemoryLimits_v1(dir)
	must.Eq(t, nvml.ERROR_NOT_SUPPORTED, ret)
	must.Eq(t, nvml.SUCCESS, dev.SetMemoryLimits_v1(dir, 64*mib, 128*mib))
	must.Eq(t, nvml.MemoryLimits_v1{NameSpace: dir, SoftLimit: 64 * mib, HardLimit: 128 * mib},
		value[nvml.MemoryLimits_v1](t)(dev.GetMemoryLimits_v1(dir)))
	_, ret = value[nvml.Device](t)(lib.DeviceGetHandleByIndex(1)).GetMemoryLimits_v1(dir)
	must.Eq(t, nvml.ERROR_NOT_FOUND, ret)
	must.True(t, fits(t, dir, "67108864"))
	must.False(t, fits(t, dir, "67108865"))

	must.Eq(t, nvml.SUCCESS, dev.SetMemoryLimits_v1(dir, 0, noLimit))
	must.True(t, fits(t, dir, "671088640"))
}

func TestMemoryLimits_Refused(t *testing.T) {
	migNode(t, "r615.conf")
	dev := value[nvml.Device](t)(openNVML(t).DeviceGetHandleByIndex(0))
	dir := newCgroup(t)

	type refused struct {
		dir        string
		soft, hard uint64
		want       nvml.Return
	}
	all := map[string]refused{
		"no such directory":  {dir + "/none", 0, mib, nvml.ERROR_OPERATING_SYSTEM},
		"not a cgroup":       {t.TempDir(), 0, mib, nvml.ERROR_INVALID_ARGUMENT},
		"a file of a cgroup": {dir + "/cgroup.procs", 0, mib, nvml.ERROR_INVALID_ARGUMENT},
		"soft above hard":    {dir, 2 * mib, mib, nvml.ERROR_INVALID_ARGUMENT},
		"more than the GPU":  {dir, 0, 1025 * mib, nvml.ERROR_INVALID_ARGUMENT},
	}
	root := filepath.Dir(dir)
	if info, err := os.Stat(root); err == nil && info.Sys().(*syscall.Stat_t).Ino == 1 { // else the topmost that is mounted is none
		all["the root"] = refused{root, 0, mib, nvml.ERROR_NOT_SUPPORTED}
	}
	for name, c := range all {
		t.Run(name, func(t *testing.T) {
			must.Eq(t, c.want, dev.SetMemoryLimits_v1(c.dir, c.soft, c.hard))
		})
	}
	_, ret := dev.GetMemoryLimits_v1(dir)
	must.Eq(t, nvml.ERROR_NOT_SUPPORTED, ret)

	must.Eq(t, nvml.SUCCESS, dev.SetMemoryLimits_v1(dir, 0, 256*mib))
	holder := inCgroup(t, dir, exec.Command(testProgram("nvml-hold"), "67108864"))
	startHolding(t, holder)
	must.Eq(t, nvml.ERROR_INVALID_ARGUMENT, dev.SetMemoryLimits_v1(dir, 0, 127*mib))
	must.Eq(t, 256*mib, value[nvml.MemoryLimits_v1](t)(dev.GetMemoryLimits_v1(dir)).HardLimit)
}

// Only root sets limits, and anybody reads them.
func TestMemoryLimits_Smi(t *testing.T) {
	root := migNode(t, "r615.conf")
	must.NoError(t, os.Chmod(filepath.Dir(root), 0o755))
	must.NoError(t, os.Chmod(filepath.Dir(filepath.Dir(root)), 0o755))
	dir := newCgroup(t)
	smi := func(uid uint32, args ...string) string {
		cmd := exec.Command(filepath.Join(root, "usr/bin/nvidia-smi"), append([]string{"memory-limits"}, args...)...)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(root, "usr/lib/x86_64-linux-gnu"))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, _ := cmd.CombinedOutput()
		return string(out)
	}

	must.Eq(t, "Unable to set memory limits on GPU  0: Insufficient Permissions\n",
		smi(65534, "--set", "-n", dir, "--soft-limit", "10", "--hard-limit", "100", "-i", "0"))
	must.Eq(t, "", smi(0, "--set", "-n", dir, "--soft-limit", "10", "--hard-limit", "100", "-i", "0"))
	must.Eq(t, "namespace: "+dir+"\nsoft limit: 10 MiB\nhard limit: 100 MiB\ncurrent used: 0 MiB\n",
		smi(65534, "--get", "-n", dir, "-i", "0"))
	must.StrContains(t, smi(0, "--set", "-n", dir), "usage:")
}

// A process in a limited cgroup sees the limit in the place of the GPU, whatever it can see of cgroups.
func TestMemoryLimits_Shown(t *testing.T) {
	migNode(t, "r615.conf")
	dev := value[nvml.Device](t)(openNVML(t).DeviceGetHandleByIndex(0))
	dir := newCgroup(t)
	child := filepath.Join(dir, "child")
	must.NoError(t, os.Mkdir(child, 0o755))
	t.Cleanup(func() { os.Remove(child) })
	must.Eq(t, nvml.SUCCESS, dev.SetMemoryLimits_v1(dir, 0, 256*mib))
	holder := inCgroup(t, dir, exec.Command(testProgram("nvml-hold"), "67108864"))
	startHolding(t, holder)
	query := func(dir string) string {
		cmd := exec.Command("unshare", "-C", tool("nvidia-smi"), "--query-gpu=memory.total,memory.used,memory.free",
			"--format=csv,noheader")
		out, err := inCgroup(t, dir, cmd).CombinedOutput()
		must.NoError(t, err, must.Sprint(string(out)))
		return strings.Split(string(out), "\n")[0]
	}

	must.Eq(t, "256 MiB, 128 MiB, 128 MiB", query(dir))
	must.Eq(t, "1024 MiB, 128 MiB, 896 MiB", query(child))
	must.True(t, fits(t, child, "67108864", "unshare", "-C", testProgram("nvml-hold")))
	must.False(t, fits(t, child, "67108865", "unshare", "-C", testProgram("nvml-hold")))
}

// A static program that loads the driver itself, without another environment than it must have.
func TestMemoryLimits_StaticProgram(t *testing.T) {
	migNode(t, "r615.conf")
	program := filepath.Join(t.TempDir(), "hold")
	out, err := exec.Command("cc", "-static", "-w", "-o", program, "testdata/hold.c").CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	dev := value[nvml.Device](t)(openNVML(t).DeviceGetHandleByIndex(0))
	dir := newCgroup(t)
	must.Eq(t, nvml.SUCCESS, dev.SetMemoryLimits_v1(dir, 0, 128*mib))

	must.True(t, fits(t, dir, "67108864", program))
	must.False(t, fits(t, dir, "67108865", program))
}

func TestMemoryLimits_Record(t *testing.T) {
	migNode(t, "r615.conf")
	dev := value[nvml.Device](t)(openNVML(t).DeviceGetHandleByIndex(0))
	dir := newCgroup(t)
	must.Eq(t, nvml.SUCCESS, dev.SetMemoryLimits_v1(dir, mib, 256*mib))
	holder := inCgroup(t, dir, exec.Command(testProgram("nvml-hold"), "67108864"))
	startHolding(t, holder)

	var record struct {
		Limits []map[string]any `json:"memory_limits"`
	}
	must.NoError(t, json.Unmarshal(simgpu(t, "record", "--json"), &record))
	must.Len(t, 1, record.Limits)
	delete(record.Limits[0], "cgroup_id")
	must.Eq(t, map[string]any{"cgroup": dir, "removed": false, "gpu_uuid": value[string](t)(dev.GetUUID()),
		"soft_bytes": float64(mib), "hard_bytes": float64(256 * mib), "bytes": float64(128 * mib),
		"peak_bytes": float64(128 * mib)}, record.Limits[0])
	must.StrContains(t, string(simgpu(t, "record")), dir)
}

// MIG handles have no limits; a driver before 615 has none at all.
func TestMemoryLimits_NotSupported(t *testing.T) {
	dir := newCgroup(t)
	t.Run("MIG", func(t *testing.T) {
		text, err := os.ReadFile("../../topologies/h200-mig.conf")
		must.NoError(t, err)
		file := filepath.Join(t.TempDir(), "mig.conf")
		must.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(text), "570.124.06", "615.71.09", 1)), 0o600))
		topologies, err := filepath.Abs("../../topologies")
		must.NoError(t, err)
		relative, err := filepath.Rel(topologies, file)
		must.NoError(t, err)
		migNode(t, relative)
		gpu := value[nvml.Device](t)(openNVML(t).DeviceGetHandleByIndex(0))
		mig := value[nvml.Device](t)(gpu.GetMigDeviceHandleByIndex(0))
		must.Eq(t, nvml.ERROR_NOT_SUPPORTED, mig.SetMemoryLimits_v1(dir, 0, 256*mib))
		_, ret := mig.GetMemoryLimits_v1(dir)
		must.Eq(t, nvml.ERROR_NOT_SUPPORTED, ret)
	})
	t.Run("570", func(t *testing.T) {
		migNode(t, "small.conf")
		gpu := value[nvml.Device](t)(openNVML(t).DeviceGetHandleByIndex(0))
		must.Eq(t, nvml.ERROR_NOT_SUPPORTED, gpu.SetMemoryLimits_v1(dir, 0, 256*mib))
	})
}
