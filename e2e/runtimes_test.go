//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/e2e/node"
)

// way is one way in which a container asks for a fraction of a GPU.
type way string

// The ways, as docs/runtimes.md calls them.
const (
	deviceBlock way = "device block" // of a jobspec
	claimToken  way = "claim token"  // in the environment, as Nomad's drivers pass it on
	environment way = "environment"  // TRANCHE_GPU_MEMORY and TRANCHE_GPU
	annotation  way = "annotation"   // dev.tranche/gpu-memory and dev.tranche/gpu
	cdiDevice   way = "CDI device"   // tranche.dev/slice=…
)

// cell is one cell of the table in docs/runtimes.md: who starts the container, how it asks, and which runtime does the work.
type cell struct {
	who     string
	way     way
	runtime string
}

// name is that of its test below TestRuntimes, and what stands in the table.
func (c cell) name() string {
	name := c.who + "/" + string(c.way)
	if c.runtime == node.RuntimeTrancheCrun {
		name += "/crun"
	}
	return strings.ReplaceAll(name, " ", "_")
}

// container is the name of its container.
func (c cell) container() string { return strings.NewReplacer("/", "-", "_", "-").Replace(c.name()) }

// nomad is what stands before the name of a driver of Nomad, where that is who starts the container.
const nomad = "nomad "

// cells are all of them.
func cells() []cell {
	cells := []cell{
		{nomad + "containerd", deviceBlock, node.RuntimeRunc},
		{nomad + "docker", deviceBlock, node.RuntimeTranche},
		{nomad + "podman", deviceBlock, node.RuntimeTranche},
	}
	for _, engine := range engineNames {
		for _, w := range append([]way{claimToken, environment}, moreWays[engine]...) {
			cells = append(cells, cell{engine, w, node.RuntimeTranche})
		}
		if !slices.Contains(withoutCrun, engine) {
			cells = append(cells, cell{engine, claimToken, node.RuntimeTrancheCrun}, cell{engine, environment, node.RuntimeTrancheCrun})
		}
	}
	return cells
}

var engineNames = []string{"docker", "podman", "containerd 1", "containerd 2", "nerdctl", "CRI 1", "CRI 2"}

// moreWays are those that not every engine has: Docker got annotations and CDI after the version of Debian 12, containerd CDI
// with 1.7.
var moreWays = map[string][]way{
	"podman": {annotation, cdiDevice}, "containerd 1": {annotation},
	"containerd 2": {annotation, cdiDevice}, "nerdctl": {annotation, cdiDevice},
	"CRI 1": {annotation}, "CRI 2": {annotation, cdiDevice},
}

// withoutCrun are the engines whose containers the crun of Debian 12 refuses, whoever starts it: it does not know the
// version of the OCI specification in their config.json. testCrun shows so.
var withoutCrun = []string{"containerd 2", "nerdctl", "CRI 2"}

// TestRuntimes starts a container in every way that docs/runtimes.md has in its table and looks at what arrived in it; and
// it does what else people do with containers. One node serves all: to start the engines takes longer than a test.
func TestRuntimes(t *testing.T) {
	ran := addNVIDIAPrograms(t)
	e := startEngines(t)
	e.ranNVIDIA = ran
	for _, s := range e.subtests() {
		t.Run(s.name, func(t *testing.T) {
			e.t = t
			s.run(t)
		})
	}
}

// subtest is one of TestRuntimes, by the name that docs/runtimes.md has for it.
type subtest struct {
	name string
	run  func(t *testing.T)
}

func (e *engines) subtests() []subtest {
	var all []subtest
	add := func(who, what string, run func(t *testing.T)) {
		all = append(all, subtest{strings.ReplaceAll(who+"/"+what, " ", "_"), run})
	}
	for _, c := range cells() {
		all = append(all, subtest{c.name(), func(t *testing.T) { e.testArrives(t, c) }})
	}
	for _, name := range engineNames {
		add(name, "refused", func(t *testing.T) { e.testRefused(t, e.all[name]) })
	}
	for _, driver := range []string{"docker", "podman"} {
		add(nomad+driver, "refused", func(t *testing.T) { e.testRefusedTask(t, driver) })
	}
	for _, name := range []string{"docker", "podman", "nerdctl"} {
		add(name, "plain", func(t *testing.T) { e.testPlain(t, e.dockerLike(name)) })
	}
	for _, name := range []string{"containerd 1", "containerd 2"} {
		add(name, "plain", func(t *testing.T) { e.testPlainCtr(t, e.all[name].(*node.Ctr)) })
	}
	for _, name := range withoutCrun {
		add(name, "crun", func(t *testing.T) { testCrun(t, e.all[name]) })
	}
	for _, name := range []string{"docker", "podman"} {
		add(name, "build", func(t *testing.T) { testBuild(t, e.dockerLike(name)) })
	}
	for _, name := range []string{"docker", "podman"} {
		add(name, "again", func(t *testing.T) { e.testAgain(t, e.all[name]) })
	}
	add("docker", "health", func(t *testing.T) {
		testHealth(t, e.dockerLike("docker"), "healthy", "inspect", "--format", "{{.State.Health.Status}}")
	})
	add("podman", "health", func(t *testing.T) { // Podman leaves the intervals to systemd.
		testHealth(t, e.dockerLike("podman"), "", "healthcheck", "run")
	})
	return all
}

func (e *engines) dockerLike(name string) dockerLike { return e.all[name].(dockerLike) }

// The GPU that the containers ask for is the second one, so that it is none that they would get by chance.
const (
	askedGPU   = 1
	askedLimit = 3 * gib
	wantExit   = 7
)

// arriving is what the containers run: they say what they see, take what memory they get, and leave at SIGTERM.
const arriving = `
echo "devices: $(echo /dev/nvidia*)"
echo "secrets: $(env | grep -c ^TRANCHE_)"
echo "visible: $NVIDIA_VISIBLE_DEVICES"
trap 'kill $probe; wait $probe; exit 7' TERM
gpu-probe fill &
probe=$!
wait $probe
exit 1`

// wantArrived is what it says, whoever has started it.
var wantArrived = []string{"devices: /dev/nvidia-uvm /dev/nvidia1 /dev/nvidiactl", "secrets: 0", "visible: void"}

// testArrives starts a container as the cell says, and checks that its GPU has arrived with its limit, and nothing else;
// that the claim is the container's while it runs; and that the end is the container's own.
func (e *engines) testArrives(t *testing.T, c cell) {
	run := e.begin(t, c)
	var said []string
	run.says(t, func(line string) bool {
		said = append(said, line)
		return strings.Contains(line, `"computing"`)
	})
	must.Eq(t, wantArrived, said[:len(wantArrived)])

	held := e.held()
	must.NotNil(t, held, must.Sprint("no claim is bound to the container"))
	must.Eq(t, askedLimit, held.LimitBytes)
	must.Eq(t, askedGPU, held.GPU.Index)
	group, err := node.GroupOf(held.Container.InitPID)
	must.NoError(t, err)
	record, err := e.Sim.Record(deadline(t))
	must.NoError(t, err)
	groups := record.Group(group)
	must.MapLen(t, 1, groups, must.Sprint("GPUs of which the container has memory, by the simulator's record"))
	must.Eq(t, askedLimit, groups[held.GPU.UUID].Bytes)
	must.Eq(t, askedLimit, groups[held.GPU.UUID].PeakBytes)

	e.mustBeNamed(t, c, held)
	e.mustExecWithoutSecrets(t, c)
	must.Eq(t, wantExit, run.end(t))
	e.mustBeReleased(t, c, held)
	mustBeFree(t, e.Node)
}

// mustBeNamed checks what is recorded with a claim: which task or container it is for. ctr gives containers no names.
func (e *engines) mustBeNamed(t *testing.T, c cell, held *claim.Claim) {
	t.Helper()
	noted := workloadOf(t, e.Node, held.ID)
	driver, task := strings.CutPrefix(c.who, nomad)
	switch {
	case strings.HasPrefix(c.who, "containerd"):
		must.Eq(t, claim.Workload{}, noted)
	case !task:
		must.Eq(t, claim.Workload{ContainerName: c.container()}, noted)
	default:
		alloc := running(t, e.Node, c.container())
		want := claim.Workload{
			Namespace: "default", Job: c.container(), Group: "g", Task: "t", Allocation: alloc.ID, Verified: driver == "containerd",
		}
		if !want.Verified {
			want.ContainerName = "t-" + alloc.ID
		}
		must.Eq(t, want, noted)
	}
}

// mustExecWithoutSecrets checks that what is executed in the container sees no token, nor what it asked for. Engines give it
// the environment that they have configured.
func (e *engines) mustExecWithoutSecrets(t *testing.T, c cell) {
	t.Helper()
	engine, ok := e.all[c.who].(interface {
		Exec(ctx context.Context, container string, command ...string) *exec.Cmd
	})
	if !ok { // Nomad, of whose containers driver.TestGPU_ExecSeesNoToken is about one; the CRI's command line has no exec.
		return
	}
	out, err := output(engine.Exec(deadline(t), c.container(), "env"))
	must.NoError(t, err, must.Sprint(out))
	must.StrContains(t, out, "NVIDIA_VISIBLE_DEVICES=void")
	must.StrNotContains(t, out, "TRANCHE_")
}

// begin starts the cell's container.
func (e *engines) begin(t *testing.T, c cell) *launched {
	t.Helper()
	id := c.container()
	if driver, ok := strings.CutPrefix(c.who, nomad); ok {
		return e.launchJob(t, e.job(c, id, driver))
	}
	container := node.Container{
		Name: id, Image: probeImage, Runtime: c.runtime, Command: []string{"sh", "-c", arriving},
	}
	e.ask(t, c.way, &container)
	return e.launch(t, e.all[c.who], container)
}

// job is the cell's container as a task of Nomad.
func (e *engines) job(c cell, id, driver string) task {
	s := task{
		job: id, driver: driver, command: "sh", args: []string{"-c", arriving},
		devices: []string{onGPU(askedLimit/gib, askedGPU)},
	}
	switch driver {
	case "docker":
		s.configExtra = fmt.Sprintf("network_mode = \"host\"\nruntime = %q", c.runtime)
	case "podman":
		s.configExtra = `network_mode = "host"`
	}
	return s
}

// ask has the container ask for its fraction.
func (e *engines) ask(t *testing.T, w way, c *node.Container) {
	t.Helper()
	switch w {
	case claimToken:
		c.Env = append(c.Env, e.reserve(t))
	case environment:
		c.Env = append(c.Env, fmt.Sprintf("TRANCHE_GPU_MEMORY=%dGiB", askedLimit/gib), fmt.Sprintf("TRANCHE_GPU=index:%d", askedGPU))
	case annotation:
		c.Annotations = append(c.Annotations,
			fmt.Sprintf("dev.tranche/gpu-memory=%dGiB", askedLimit/gib), fmt.Sprintf("dev.tranche/gpu=%d", askedGPU))
	case cdiDevice: // It says how much, and a variable on which GPU.
		c.Devices = append(c.Devices, fmt.Sprintf("tranche.dev/slice=%dGiB", askedLimit/gib))
		c.Env = append(c.Env, fmt.Sprintf("TRANCHE_GPU=%d", askedGPU))
	default:
		t.Fatalf("no container can ask by %s", w)
	}
}

// reserve makes a claim as the device plugin does and returns the entry of the environment that leads to it.
func (e *engines) reserve(t *testing.T) string {
	t.Helper()
	record, err := e.Sim.Record(deadline(t))
	must.NoError(t, err)
	gpu := record.GPUs[askedGPU]
	var taken []string
	for i := range askedLimit / gib {
		taken = append(taken, fmt.Sprintf("%s/slice-%03d", gpu.UUID, 139-i)) // Nomad begins at the other end.
	}
	_, token, err := openLedger(t, e.Node).Reserve(deadline(t), claim.Request{
		GPU:    claim.GPU{UUID: gpu.UUID, Index: askedGPU, Name: gpu.Name, ContextBytes: 300 * mib},
		Slices: taken, LimitBytes: askedLimit, Owner: claim.OwnerNomad,
	})
	must.NoError(t, err)
	return token.EnvName() + "=" + token.Reveal()
}

// mustBeReleased checks that the container's end has released its claim. Nomad may come back for a claim that it has
// reserved; one that the container had asked for is gone with it. Engines delete a container before they say that it has
// ended, and so the claim has been released by then; but for Podman, and for Nomad, which has more to do in between.
func (e *engines) mustBeReleased(t *testing.T, c cell, held *claim.Claim) {
	t.Helper()
	released := func() (bool, error) {
		found := e.find(held.ID)
		if held.Owner == claim.OwnerExternal {
			return found == nil, nil
		}
		return found != nil && !found.Released.IsZero(), nil
	}
	if c.who == "podman" || strings.HasPrefix(c.who, nomad) {
		must.NoError(t, until(deadline(t), released))
		return
	}
	now, err := released()
	must.NoError(t, err)
	must.True(t, now, must.Sprintf("claim %s still stands when %s says that the container has ended", held.ID, c.who))
}

// TestRuntimes_Table holds docs/runtimes.md to the tests that TestRuntimes has: each is named once, and no other.
func TestRuntimes_Table(t *testing.T) {
	var tested []string
	for _, s := range (&engines{}).subtests() {
		tested = append(tested, s.name)
	}
	slices.Sort(tested)
	must.Eq(t, tested, testsOfPage(t))
}
