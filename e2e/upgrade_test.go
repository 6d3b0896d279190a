//go:build e2e

package e2e

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/e2e/node"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// upgradeModes shares the GPUs of the node in every mode that needs no MIG.
const upgradeModes = mpsMode + `
    gpu "index:2" {
      mode     = "timeslice"
      replicas = 4
    }
    gpu "index:3" { mode = "exclusive" }
`

const mpsMode = `
    gpu "index:1" { mode = "mps" }
`

// Each slice is 1 GiB. A context of the simulated GPU takes contextOfSim, which MPS counts in full and uses in part.
const (
	slicesOfGPU  = 139
	contextOfSim = 300 * mib
	mpsSlack     = contextOfSim + 2*mib
)

// TestUpgrade replaces an installed version of Tranche by this one under running tasks and containers, and goes back to
// it. The other version is the build folder TRANCHE_UPGRADE_FROM.
func TestUpgrade(t *testing.T) {
	other := os.Getenv("TRANCHE_UPGRADE_FROM")
	must.NotEq(t, "", other, must.Sprint("run this test with: make test-upgrade"))
	u := startUpgradeNode(t, other, upgradeModes)
	u.free = slicesOfGPU
	before := u.startTasks(t, "old")
	u.check(t)

	if !t.Run("upgrade", func(t *testing.T) {
		u.replace(t, build)
		u.finish(t, before)
	}) {
		return
	}
	during := u.startTasks(t, "new")
	u.check(t)
	if !t.Run("downgrade", func(t *testing.T) {
		u.replace(t, other)
		u.finish(t, during)
	}) {
		return
	}
	u.startTasks(t, "last")
	u.check(t)
	u.stopAll(t)
}

// TestUpgrade_WithoutModes goes back to a version that knows no modes while a task in mode mps runs, and forth again. The
// version is the build folder TRANCHE_WITHOUT_MODES. It cannot read the task's claim, and says so; the task loses nothing.
func TestUpgrade_WithoutModes(t *testing.T) {
	older := os.Getenv("TRANCHE_WITHOUT_MODES")
	must.NotEq(t, "", older, must.Sprint("run this test with: make test-upgrade"))
	u := startUpgradeNode(t, build, mpsMode)
	slice, mps := fillTask("slice", 20, 0), fillTask("mps", 20, 1)
	mps.holds -= mpsSlack
	for _, task := range []*upgradeTask{slice, mps} {
		start(t, u.Node, task.task)
		u.follow(t, task)
	}

	config := filepath.Join(u.Dir, "plugins.hcl")
	modes := readFile(t, config)
	must.NoError(t, os.WriteFile(config, []byte(strings.Replace(modes, mpsMode, "", 1)), 0o644))
	must.NoError(t, u.Install(deadline(t), older))
	u.restartAgent(t)
	report := u.status(t)
	must.Len(t, 1, report.Problems)
	must.Eq(t, mps.claim.ID, report.Problems[0].ClaimID)
	must.StrContains(t, report.Problems[0].Reason, `unknown field "mode"`)
	must.StrContains(t, report.Problems[0].Reason, "Its container, if it still runs, keeps its limit")
	must.Len(t, 1, report.Claims)
	must.Eq(t, slice.claim.ID, report.Claims[0].ID)
	u.isRefused(t, report.GPUs[1].Slices.Total-20+1, 1)
	for _, task := range u.tasks {
		must.Eq(t, task.alloc.ID, running(t, u.Node, task.job).ID)
		task.holdsAsBefore(t, u.Node)
	}

	must.NoError(t, os.WriteFile(config, []byte(modes), 0o644))
	must.NoError(t, u.Install(deadline(t), build))
	u.restartAgent(t)
	report = u.status(t)
	must.SliceEmpty(t, report.Problems)
	must.Len(t, 2, report.Claims)
	must.Eq(t, slicesOfGPU-20, report.GPUs[1].Slices.Free)
	u.checkMPS(t)
	for _, task := range u.tasks {
		must.Eq(t, task.alloc.ID, running(t, u.Node, task.job).ID)
		u.checkCommands(t, task)
	}
	u.stopAll(t)
}

// upgrade is a node whose version of Tranche is replaced, and what runs on it.
type upgrade struct {
	*node.Node
	tasks      []*upgradeTask
	containers []*localContainer
	// free is how many slices of the first GPU nothing has.
	free int
	// replaced is how often the version was replaced, checks how often what is free was reserved.
	replaced, checks int
	// mpsServer is the process ID of the MPS server.
	mpsServer int
}

func startUpgradeNode(t *testing.T, from, modes string) *upgrade {
	t.Helper()
	run, err := os.MkdirTemp("/run", "tranche-") // The sockets of MPS need a short name.
	must.NoError(t, err)
	return &upgrade{Node: startNode(t, func(c *node.Config) {
		c.Topology = filepath.Join(build, "../e2e/simgpu/topologies/h200x8.conf")
		c.DeviceConfig, c.RunAt, c.InstallFrom = modes, run, from
	})}
}

// upgradeTask is a task that runs while versions change.
type upgradeTask struct {
	task
	// limit is the claim's; 0 if it has none. The task holds at least holds of it, and what it held first.
	limit, holds, held uint64

	alloc *api.AllocationListStub
	claim *claim.Claim
	group string
}

// fillTask takes all of n slices of a GPU.
func fillTask(job string, n, gpu int) *upgradeTask {
	limit := uint64(n) * gib
	return &upgradeTask{
		task:  task{job: job, command: "gpu-probe", args: []string{"fill"}, devices: []string{onGPU(n, gpu)}},
		limit: limit, holds: limit,
	}
}

// startedTasks are the tasks of one generation that something is done to after the version was replaced.
type startedTasks struct {
	// restarts is restarted in place, ends is stopped.
	restarts, ends *upgradeTask
	container      *localContainer
}

// startTasks starts a generation of tasks and a container outside Nomad under the version that is installed.
func (u *upgrade) startTasks(t *testing.T, name string) *startedTasks {
	t.Helper()
	slice := func(what string, n int) *upgradeTask {
		u.free -= n
		return fillTask(name+"-"+what, n, 0)
	}
	whole := func(mode, device string) *upgradeTask {
		return &upgradeTask{
			task: task{
				job: name + "-" + mode, command: "gpu-probe", args: []string{"take", "4096"},
				deviceType: device, devices: []string{anyGPU(1)}, // Only one GPU has the mode.
			},
			holds: 4*gib + contextOfSim,
		}
	}
	s := &startedTasks{restarts: slice("restarts", 3), ends: slice("ends", 6)}
	greedy, mps := slice("greedy", 4), fillTask(name+"-mps", 20, 1)
	greedy.args = []string{"greedy"}
	mps.holds -= mpsSlack
	tasks := []*upgradeTask{
		slice("fill", 8), greedy, s.restarts, s.ends, mps, whole("timeslice", "nvidia/timeslice"),
	}
	if u.replaced == 0 {
		tasks = append(tasks, whole("exclusive", "nvidia/gpu"))
	}
	for _, task := range tasks {
		start(t, u.Node, task.task)
	}
	for _, task := range tasks {
		u.follow(t, task)
	}
	s.container = newLocal(t, u.Node).start(name, nil, "TRANCHE_GPU_MEMORY=2GiB", "TRANCHE_GPU=0")
	u.containers = append(u.containers, s.container)
	u.free -= 2
	return s
}

// follow waits until a new container of the task has taken its memory, and notes what has to stay as it is.
func (u *upgrade) follow(t *testing.T, task *upgradeTask) {
	t.Helper()
	task.alloc = running(t, u.Node, task.job)
	says := `"computing"`
	if task.args[0] == "greedy" {
		says = `"refusals"`
	}
	saysLine(t, u.Node, task.alloc.ID, says)
	u.note(t, task)
	u.tasks = append(u.tasks, task)
}

func (u *upgrade) note(t *testing.T, task *upgradeTask) {
	t.Helper()
	claims, err := u.Claims(deadline(t), task.alloc.ID, "t")
	must.NoError(t, err)
	must.Len(t, 1, claims)
	must.NotNil(t, claims[0].Container)
	task.claim = claims[0]
	if task.limit > 0 {
		must.True(t, u.loadsInstalled(t, task), must.Sprintf("%s has not loaded the installed library", task.job))
	}
	task.group, err = node.GroupOf(task.claim.Container.InitPID)
	must.NoError(t, err)
	task.held = 0
	task.holdsAsBefore(t, u.Node)
}

// loadsInstalled reports whether the task's program has loaded the shadow library that is installed now: the file itself, or
// the one that the hook made from it, which has its version. Older revisions wrote none, and their hooks made no libraries.
func (u *upgrade) loadsInstalled(t *testing.T, task *upgradeTask) bool {
	t.Helper()
	installed := filepath.Join(u.ShadowDir(), shadowName)
	inode := fmt.Sprint(stat(t, installed).Sys().(*syscall.Stat_t).Ino)
	version, versionErr := shadow.Version(installed)
	// Each line of proc_pid_maps(5) has: address perms offset dev inode pathname.
	proc := fmt.Sprintf("/proc/%d/", task.claim.Container.InitPID)
	for line := range strings.Lines(readFile(t, proc+"maps")) {
		fields := strings.Fields(line)
		if len(fields) < 6 || filepath.Base(fields[5]) != shadowName {
			continue
		}
		if fields[4] == inode {
			return true
		}
		loaded, err := shadow.Version(proc + "map_files/" + fields[0])
		if versionErr == nil && err == nil && loaded == version {
			return true
		}
	}
	return false
}

// holdsAsBefore compares what the task holds with its limit, and with what it held when it was last noted.
func (task *upgradeTask) holdsAsBefore(t *testing.T, n *node.Node) {
	t.Helper()
	record, err := n.Sim.Record(deadline(t))
	must.NoError(t, err)
	groups := record.Group(task.group)
	must.MapLen(t, 1, groups, must.Sprint(task.job))
	held := groups[task.claim.GPU.UUID]
	must.GreaterEq(t, task.holds, held.Bytes, must.Sprint(task.job))
	if task.limit > 0 {
		must.LessEq(t, task.limit, held.PeakBytes, must.Sprintf("%s exceeded its limit", task.job))
	}
	if task.held > 0 {
		must.Eq(t, task.held, held.Bytes, must.Sprint(task.job))
	}
	task.held = held.Bytes
}

// replace installs another version over the one that is installed and restarts Nomad, as docs/upgrade.md says.
func (u *upgrade) replace(t *testing.T, buildDir string) {
	t.Helper()
	u.replaced++
	launched := map[string]uint64{}
	for _, task := range u.tasks {
		launched[task.job] = launches(t, u.Node, task.alloc)
	}
	files := []string{
		u.PluginPath(devicePlugin), u.PluginPath(driverPlugin), u.Program("tranche-runtime"), u.Program("tranche-hook"),
		filepath.Join(u.ShadowDir(), shadowName),
	}
	var was []os.FileInfo
	for _, file := range files {
		was = append(was, stat(t, file))
	}
	must.NoError(t, u.Install(deadline(t), buildDir))
	for i, file := range files {
		must.False(t, os.SameFile(was[i], stat(t, file)), must.Sprintf("%s is the same file as before", file))
	}
	// Until Nomad is restarted, the plugins of one version work with the programs and libraries of the other. An agent that
	// was killed takes over the task driver that its predecessor left.
	u.check(t)
	left := pluginPIDs(t, u.Node, driverPlugin)
	u.Agent.Kill()
	u.startAgent(t)
	u.runsInstalled(t, devicePlugin)
	must.SliceContainsAll(t, left, pluginPIDs(t, u.Node, driverPlugin))
	u.check(t)

	u.restartAgent(t)
	u.check(t)
	for _, task := range u.tasks {
		if task.args[0] != "greedy" {
			must.Greater(t, launched[task.job], launches(t, u.Node, task.alloc), must.Sprintf("%s stood still", task.job))
		}
		must.False(t, u.loadsInstalled(t, task), must.Sprintf("the library of %s was replaced under it", task.job))
		u.checkCommands(t, task)
	}
}

const (
	devicePlugin = "nomad-device-tranche"
	driverPlugin = "nomad-driver-tranche"
	shadowName   = "libcuda.so.1"
)

// restartAgent restarts Nomad's agent as systemd does, and with it the plugins.
func (u *upgrade) restartAgent(t *testing.T) {
	t.Helper()
	u.Agent.Stop()
	u.startAgent(t)
	u.runsInstalled(t, devicePlugin)
	u.runsInstalled(t, driverPlugin)
}

func (u *upgrade) startAgent(t *testing.T) {
	t.Helper()
	must.NoError(t, u.Agent.Start(deadline(t)))
	must.NoError(t, u.WaitReady(deadline(t)))
}

func stat(t *testing.T, path string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	must.NoError(t, err)
	return info
}

// runsInstalled waits until the processes of a plugin run the file that is installed.
func (u *upgrade) runsInstalled(t *testing.T, plugin string) {
	t.Helper()
	installed := stat(t, u.PluginPath(plugin))
	must.NoError(t, until(deadline(t), func() (bool, error) {
		pids, err := u.PluginPIDs(plugin)
		return len(pids) > 0 && !slices.ContainsFunc(pids, func(pid int) bool {
			running, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
			return err != nil || !os.SameFile(installed, running)
		}), err
	}), must.Sprintf("%s is not replaced", plugin))
}

// check compares the tasks and containers with what they were, by the simulator's record, Nomad, the installed command
// line, and what else can be reserved.
func (u *upgrade) check(t *testing.T) {
	t.Helper()
	for _, task := range u.tasks {
		must.Eq(t, task.alloc.ID, running(t, u.Node, task.job).ID, must.Sprintf("%s was replaced", task.job))
		task.holdsAsBefore(t, u.Node)
	}
	for _, container := range u.containers {
		container.t = t
		container.holdsExactly(2 * gib)
	}
	u.checkMPS(t)
	u.checkStatus(t)
	u.checkFree(t)
}

// checkMPS compares the MPS server of all tasks that use one with the server that the first of them had.
func (u *upgrade) checkMPS(t *testing.T) {
	t.Helper()
	record, err := u.Sim.Record(deadline(t))
	must.NoError(t, err)
	for _, process := range record.Processes {
		if process.MPSClient && process.Alive {
			u.mpsServer = cmp.Or(u.mpsServer, process.MPSServerPID)
			must.Eq(t, u.mpsServer, process.MPSServerPID, must.Sprint("the MPS control daemon was replaced"))
		}
	}
	must.Positive(t, u.mpsServer)
}

// statusReport is what of `tranche status --json` is compared.
type statusReport struct {
	NVMLError   string `json:"nvml_error"`
	LedgerError string `json:"ledger_error"`
	LayoutError string `json:"layout_error"`
	HealthError string `json:"health_error"`
	Problems    []struct {
		ClaimID string `json:"claim_id"`
		Reason  string `json:"reason"`
	} `json:"problems"`
	GPUs []struct {
		Mode   string `json:"mode"`
		Slices struct {
			Total int `json:"total"`
			Free  int `json:"free"`
		} `json:"slices"`
	} `json:"gpus"`
	Claims []struct {
		ID        string           `json:"id"`
		State     string           `json:"state"`
		Slices    []string         `json:"slices"`
		Container *claim.Container `json:"container"`
		// UsageError says why the memory in use cannot be read.
		UsageError string `json:"usage_error"`
	} `json:"claims"`
}

// status runs the installed `tranche status`.
func (u *upgrade) status(t *testing.T) *statusReport {
	t.Helper()
	cmd := exec.CommandContext(deadline(t), u.Program("tranche"), "status", "--json",
		"--driver-root", u.DriverRoot(), "--state-dir", u.StateDir(), "--run-dir", u.RunDir())
	cmd.Env = append(os.Environ(), u.Sim.Env()...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	must.NoError(t, err, must.Func(stderr.String))
	report := &statusReport{}
	must.NoError(t, json.Unmarshal(out, report), must.Sprint(string(out)))
	return report
}

// checkStatus looks for each claim in `tranche status`, and for slices that two claims have.
func (u *upgrade) checkStatus(t *testing.T) {
	t.Helper()
	report := u.status(t)
	must.Eq(t, "", report.NVMLError+report.LedgerError+report.LayoutError+report.HealthError)
	must.SliceEmpty(t, report.Problems, must.Sprint(report.Problems))
	var modes []string
	for _, gpu := range report.GPUs[:4] {
		modes = append(modes, gpu.Mode)
	}
	must.Eq(t, []string{"slice", "mps", "timeslice", "exclusive"}, modes)
	must.Eq(t, slicesOfGPU, report.GPUs[0].Slices.Total)
	must.Eq(t, u.free, report.GPUs[0].Slices.Free)

	claims := map[string]*claim.Claim{}
	for _, task := range u.tasks {
		claims[task.claim.ID] = task.claim
	}
	for _, container := range u.containers {
		claims[container.claim.ID] = container.claim
	}
	owner := map[string]string{}
	for _, c := range report.Claims {
		if c.State == "dormant" || c.State == "ended" {
			continue
		}
		for _, slice := range c.Slices {
			must.Eq(t, "", owner[slice], must.Sprintf("claim %s has %s, too", c.ID, slice))
			owner[slice] = c.ID
		}
		must.MapContainsKey(t, claims, c.ID)
		must.Eq(t, "running", c.State)
		must.Eq(t, "", c.UsageError)
		must.Eq(t, claims[c.ID].Slices, c.Slices)
		must.NotNil(t, c.Container)
		must.Eq(t, claims[c.ID].Container.InitPID, c.Container.InitPID)
		delete(claims, c.ID)
	}
	must.MapEmpty(t, claims, must.Sprint("claims that tranche status does not show as running"))
}

// checkFree has Nomad, and a container outside it, reserve one slice of the first GPU more than is free, then exactly what
// is free.
func (u *upgrade) checkFree(t *testing.T) {
	t.Helper()
	u.waitExternal(t)
	u.isRefused(t, u.free+1, 0)
	more := start(t, u.Node, task{job: "more", devices: []string{onGPU(u.free+1, 0)}, command: "gpu-probe", args: []string{"fill"}})
	must.NotEq(t, "", more.BlockedEval)
	must.NoError(t, u.StopJob(deadline(t), "more"))

	u.checks++
	job := fmt.Sprintf("rest-%d", u.checks)
	start(t, u.Node, task{job: job, devices: []string{onGPU(u.free, 0)}, command: "gpu-probe", args: []string{"fill"}})
	rest := running(t, u.Node, job)
	saysLine(t, u.Node, rest.ID, `"computing"`)
	mustHoldExactly(t, u.Node, rest.ID, uint64(u.free)*gib)
	claims, err := u.Claims(deadline(t), rest.ID, "t")
	must.NoError(t, err)
	u.isRefused(t, 1, 0)
	must.NoError(t, u.StopJob(deadline(t), job))
	u.release(t, claims[0])
}

// release releases the claim of a task that has ended, which containers outside Nomad do not supersede.
func (u *upgrade) release(t *testing.T, c *claim.Claim) {
	t.Helper()
	out, err := output(exec.CommandContext(deadline(t), u.Program("tranche"), "claim", "release", c.ID,
		"--state-dir", u.StateDir(), "--run-dir", u.RunDir()))
	must.NoError(t, err, must.Sprint(out))
}

// waitExternal waits until Nomad's server leaves the slices of the containers outside Nomad alone.
func (u *upgrade) waitExternal(t *testing.T) {
	t.Helper()
	unhealthy := 0
	_, err := u.WaitNode(deadline(t), func(info *api.Node) bool {
		unhealthy = 0
		for _, group := range info.NodeResources.Devices {
			for _, instance := range group.Instances {
				if !instance.Healthy {
					unhealthy++
				}
			}
		}
		return unhealthy == 2*len(u.containers)
	})
	must.NoError(t, err, must.Sprintf("%d slices are unhealthy", unhealthy))
}

// isRefused has a container outside Nomad request so many slices of a GPU, which are not free.
func (u *upgrade) isRefused(t *testing.T, slices, gpu int) {
	t.Helper()
	l := newLocal(t, u.Node)
	request := []string{fmt.Sprintf("TRANCHE_GPU_MEMORY=%dGiB", slices), fmt.Sprintf("TRANCHE_GPU=%d", gpu)}
	out, err := output(l.command("run", "--bundle", l.bundle("refused", nil, request...), "refused"))
	must.Error(t, err, must.Sprint(out))
	must.StrContains(t, out, "slices free")
}

// checkCommands runs commands in the task's container, reads its log and its statistics.
func (u *upgrade) checkCommands(t *testing.T, task *upgradeTask) {
	t.Helper()
	info, _, err := u.Agent.API.Allocations().Info(task.alloc.ID, nil)
	must.NoError(t, err)
	mark := fmt.Sprintf("replaced %d", u.replaced)
	var stdout, stderr bytes.Buffer
	code, err := u.Agent.API.Allocations().Exec(deadline(t), info, "t", false,
		[]string{"sh", "-c", "echo " + mark + " >/proc/1/fd/1; echo in the container; exit 3"}, strings.NewReader(""),
		&stdout, &stderr, make(chan api.TerminalSize), nil)
	must.NoError(t, err, must.Func(stderr.String))
	must.Eq(t, 3, code, must.Func(stderr.String))
	must.Eq(t, "in the container\n", stdout.String())
	saysLine(t, u.Node, task.alloc.ID, mark)

	program := "look"
	if task.holds == task.limit {
		program = "fill"
	}
	out := executed(t, u.Node, task.alloc.ID, "gpu-probe", program)
	must.StrContains(t, out, `"cuInit":0,"gpus":1`)
	if program == "fill" {
		must.StrContains(t, out, "CUDA_ERROR_OUT_OF_MEMORY")
	}
	task.holdsAsBefore(t, u.Node)

	must.NoError(t, until(deadline(t), func() (bool, error) {
		all, err := u.Agent.API.Allocations().Stats(info, nil)
		if err != nil {
			return false, err
		}
		usage := all.Tasks["t"]
		return usage != nil && usage.ResourceUsage.MemoryStats.RSS+usage.ResourceUsage.MemoryStats.Usage > 0 &&
			len(usage.ResourceUsage.DeviceStats) > 0, nil
	}), must.Sprintf("%s has no statistics", task.job))
}

// finish restarts a task of the replaced version in place, and ends a task and a container of it: their slices are free.
func (u *upgrade) finish(t *testing.T, s *startedTasks) {
	t.Helper()
	restart(t, u.Node, s.restarts.alloc, s.restarts.claim.Container.InitPID)
	id := s.restarts.claim.ID
	u.note(t, s.restarts)
	must.Eq(t, id, s.restarts.claim.ID, must.Sprint("the restarted task has another claim"))

	must.NoError(t, u.StopJob(deadline(t), s.ends.job))
	u.release(t, s.ends.claim)
	u.free += len(s.ends.claim.Slices)
	u.tasks = slices.DeleteFunc(u.tasks, func(task *upgradeTask) bool { return task == s.ends })
	s.container.t = t
	s.container.end()
	u.free += len(s.container.claim.Slices)
	u.containers = slices.DeleteFunc(u.containers, func(c *localContainer) bool { return c == s.container })
	record, err := u.Sim.Record(deadline(t))
	must.NoError(t, err)
	for _, group := range []string{s.ends.group, s.container.group} {
		for _, held := range record.Group(group) {
			must.Zero(t, held.Bytes)
		}
	}
	u.check(t)
}

// stopAll ends everything, after which nothing is held and nothing is left in containerd.
func (u *upgrade) stopAll(t *testing.T) {
	t.Helper()
	for _, task := range u.tasks {
		must.NoError(t, u.StopJob(deadline(t), task.job))
	}
	for _, container := range u.containers {
		container.t = t
		container.end()
	}
	must.NoError(t, until(deadline(t), func() (bool, error) {
		containers, other, err := inContainerd(u.Node)
		return containers == 0 && other == 0, err
	}), must.Sprint("something is left in containerd"))
	must.NoError(t, until(deadline(t), func() (bool, error) {
		living, err := livingClaims(deadline(t), u.Node)
		return len(living) == 0, err
	}))
}
