//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/e2e/node"
)

// TestBadJobs runs jobs that cannot run. Each fails with a message in `nomad alloc status` that names the thing, and
// harms nobody.
func TestBadJobs(t *testing.T) {
	n := startNode(t, func(c *node.Config) { c.DeviceConfig = "slice_memory = \"128MiB\"\n" })
	start(t, n, task{job: "good", command: "gpu-probe", args: []string{"fill"}, devices: []string{onGPU(8, 0)}})
	good := running(t, n, "good")
	saysLine(t, n, good.ID, `"computing"`)

	t.Run("image", func(t *testing.T) {
		start(t, n, task{job: "no-image", image: "127.0.0.1:1/no/such:image", command: "true"})
		failsWith(t, n, "no-image", "127.0.0.1:1/no/such:image")
	})
	t.Run("command", func(t *testing.T) {
		start(t, n, task{job: "no-command", command: "/no/such/program"})
		failsWith(t, n, "no-command", "/no/such/program")
	})
	t.Run("limit below one context", func(t *testing.T) {
		start(t, n, task{job: "too-little", command: "gpu-probe", args: []string{"fill"}, devices: []string{anyGPU(2)}})
		failsWith(t, n, "too-little", "256MiB", "300MiB")
	})
	t.Run("full disk under the ledger", func(t *testing.T) {
		// The state directory's file system gets a lid of no free byte.
		dir := filepath.Join(n.StateDir(), "claims")
		saved := filepath.Join(n.Dir, "claims-saved")
		must.NoError(t, os.CopyFS(saved, os.DirFS(dir)))
		must.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,mode=0700"))
		must.NoError(t, os.CopyFS(dir, os.DirFS(saved)))
		fillDisk(t, filepath.Join(dir, "ballast"))
		start(t, n, task{job: "disk", command: "gpu-probe", args: []string{"fill"}, devices: []string{onGPU(4, 1)}})
		failsWith(t, n, "disk", dir, "no space left")
		must.NoError(t, unix.Unmount(dir, unix.MNT_DETACH))
	})
	t.Run("truncated and foreign files in the ledger", func(t *testing.T) {
		dir := filepath.Join(n.StateDir(), "claims")
		must.NoError(t, os.WriteFile(filepath.Join(dir, "0badc0de.json"), []byte(`{"id": "0badc`), 0o600))
		must.NoError(t, os.WriteFile(filepath.Join(dir, "README"), []byte("not a claim\n"), 0o600))
		start(t, n, task{job: "fine", command: "gpu-probe", args: []string{"fill"}, devices: []string{onGPU(4, 1)}})
		saysLine(t, n, running(t, n, "fine").ID, `"computing"`)
		_, problems, err := openLedger(t, n).List(deadline(t))
		must.NoError(t, err)
		named := ""
		for _, p := range problems {
			named += p.Path + ": " + p.Reason + "\n"
		}
		must.StrContains(t, named, "0badc0de.json")
		must.FileExists(t, filepath.Join(dir, "0badc0de.json"))
		must.FileExists(t, filepath.Join(dir, "README"))
	})

	mustHoldExactly(t, n, good.ID, gib)
	must.Eq(t, "running", running(t, n, "good").ClientStatus)
}

// fillDisk writes a file until the file system is full.
func fillDisk(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	must.NoError(t, err)
	defer f.Close()
	for size := 4096; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			must.ErrorIs(t, err, unix.ENOSPC)
			size /= 2
		}
	}
}

// TestDriverComesLater starts a node whose driver root is empty, and then gives it a driver: there are no devices and
// no crash, one line in the log says why, and the devices appear.
func TestDriverComesLater(t *testing.T) {
	n := startNode(t, func(c *node.Config) { c.DriverLater = true })
	log := func() string {
		text, err := os.ReadFile(filepath.Join(n.Dir, "nomad.log"))
		must.NoError(t, err)
		return string(text)
	}
	must.StrContains(t, log(), n.DriverRoot())
	must.NoError(t, n.AddDriver(deadline(t)))
	must.NoError(t, n.WaitReady(deadline(t)))
	lines := 0
	for line := range strings.Lines(log()) {
		if strings.Contains(line, "no NVIDIA driver") {
			lines++
		}
	}
	must.Eq(t, 1, lines, must.Sprint("one line says that there is no driver"))
	start(t, n, task{job: "late", command: "gpu-probe", args: []string{"fill"}, devices: []string{onGPU(2, 0)}})
	late := running(t, n, "late")
	saysLine(t, n, late.ID, `"computing"`)
	mustHoldExactly(t, n, late.ID, 2*gib)
}

// TestWrongSliceMemory starts an agent whose plugin is configured wrongly: the agent says which option is wrong and what
// it may be.
func TestWrongSliceMemory(t *testing.T) {
	dir := filepath.Join(build, "e2e", "wrong-slice-memory")
	must.NoError(t, os.RemoveAll(dir))
	n, err := node.Start(deadline(t), node.Config{
		Dir: dir, BuildDir: build, NomadBinary: filepath.Join(build, "tools/nomad"), DriverLater: true,
		Topology:     filepath.Join(build, "../e2e/simgpu/topologies/h200x2.conf"),
		DeviceConfig: "slice_memory = \"a lot\"\n",
	})
	if err == nil {
		t.Cleanup(func() { _ = n.Stop(deadline(t)) })
	}
	text, err := os.ReadFile(filepath.Join(dir, "nomad.log"))
	must.NoError(t, err)
	must.StrContains(t, string(text), "slice_memory")
	must.StrContains(t, string(text), "a lot")
	must.StrContains(t, string(text), "1GiB")
	must.NoError(t, os.RemoveAll(dir))
}

// TestExampleAgentConfig starts an agent with the plugin blocks of the example: both plugins take every option in it.
func TestExampleAgentConfig(t *testing.T) {
	n := startNode(t, func(c *node.Config) { c.DriverLater = true })
	n.Agent.Stop()
	must.NoError(t, n.Agent.StartWith(deadline(t), filepath.Join(build, "../examples/nomad-agent.hcl"), "slice_memory=1GiB"))
	text, err := os.ReadFile(filepath.Join(n.Dir, "nomad.log"))
	must.NoError(t, err)
	last := string(text[strings.LastIndex(string(text), "==> Starting Nomad agent"):])
	for _, plugin := range []string{"nomad-device-tranche", "nomad-driver-tranche"} {
		must.StrContains(t, last, plugin)
	}
	must.StrNotContains(t, last, "failed to parse config")
}
