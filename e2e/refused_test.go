//go:build e2e

package e2e

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/e2e/node"
)

// nvidiaPrograms stand in for the programs of NVIDIA's container toolkit that Docker's --gpus and containerd's --gpus put
// into a container's hooks. They must never be run for a container without a claim.
var nvidiaPrograms = []string{"nvidia-container-runtime-hook", "nvidia-container-cli"}

// addNVIDIAPrograms puts them on the PATH of the engines; one that is run leaves a file.
func addNVIDIAPrograms(t *testing.T) (ran func() []string) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range nvidiaPrograms {
		script := "#!/bin/sh\ntouch " + filepath.Join(dir, "$(basename $0).ran") + "\n"
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755))
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return func() []string {
		left, err := filepath.Glob(filepath.Join(dir, "*.ran"))
		must.NoError(t, err)
		return left
	}
}

// refusal is a container that must not start, and what its user has to read.
type refusal struct {
	env, flags, devices []string
	want                []string
	// image and program are those of a container that would start, unless stated.
	image, program string
}

// neverPull has engines that pull images not try.
var neverPull = map[string][]string{"docker": {"--pull", "never"}, "podman": {"--pull", "never"}, "nerdctl": {"--pull", "never"}}

// refusals are the same for all engines; the flags are those that some have.
func refusals(engine string) map[string]refusal {
	all := map[string]refusal{
		"GPUs-without-a-claim": {
			env: []string{"NVIDIA_VISIBLE_DEVICES=all"},
			want: []string{
				"the container requests GPUs by NVIDIA_VISIBLE_DEVICES=", "TRANCHE_GPU_MEMORY=8GiB", "NVIDIA_VISIBLE_DEVICES=void",
			},
		},
		"more-than-there-is": {env: []string{"TRANCHE_GPU_MEMORY=900GiB"}, want: []string{"requests 900GiB"}},
		"two-ways":           {env: []string{"TRANCHE_GPU_MEMORY=1GiB", "TRANCHE_CLAIM_00000000=x"}, want: []string{"in one way"}},
		"no-program":         {env: []string{"TRANCHE_GPU_MEMORY=140GiB"}, program: "/no/such/program", want: []string{"/no/such/program"}},
		"absent-image": {
			env: []string{"TRANCHE_GPU_MEMORY=140GiB"}, image: "tranche.local/absent:1", flags: neverPull[engine], want: []string{"absent"},
		},
	}
	switch engine {
	case "docker":
		all["gpus-flag"] = refusal{flags: []string{"--gpus", "all"}, want: []string{"the hook \"nvidia-container-runtime-hook\""}}
	case "containerd 1":
		all["gpus-flag"] = refusal{flags: []string{"--gpus", "0"}, want: []string{"the hook \"nvidia-container-cli\""}}
	}
	if slices.Contains(moreWays[engine], cdiDevice) {
		all["NVIDIAs-CDI-device"] = refusal{devices: []string{"nvidia.com/gpu=0"}, want: []string{"/dev/nvidia0", "has no claim"}}
	}
	return all
}

// testRefused starts containers that are refused, and checks that each engine shows its user why, and that nothing is left.
func (e *engines) testRefused(t *testing.T, engine node.Engine) {
	for name, r := range refusals(engine.Name()) {
		t.Run(name, func(t *testing.T) {
			e.t = t
			out, err := output(engine.Run(deadline(t), node.Container{
				Name: "refused-" + name, Image: cmp.Or(r.image, probeImage), Runtime: node.RuntimeTranche, Env: r.env, Flags: r.flags,
				Devices: r.devices, Command: []string{cmp.Or(r.program, "echo"), "it started"},
			}))
			must.Positive(t, exitCode(t, err), must.Sprint(out))
			must.StrNotContains(t, out, "it started")
			for _, want := range r.want {
				must.StrContains(t, out, want)
			}
			must.SliceEmpty(t, e.inUse())
			must.SliceEmpty(t, e.ranNVIDIA())
		})
	}
}

// inUse are the IDs of the claims that keep slices from others.
func (e *engines) inUse() (ids []string) {
	e.t.Helper()
	ledger := openLedger(e.t, e.Node)
	all, problems, err := ledger.List(deadline(e.t))
	must.NoError(e.t, err)
	must.SliceEmpty(e.t, problems)
	for _, c := range all {
		if state := ledger.State(c, time.Now()); state == claim.StateReserved || state == claim.StateRunning {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// testRefusedTask does the same with tasks of Nomad, which may not ask by themselves either.
func (e *engines) testRefusedTask(t *testing.T, driver string) {
	for name, want := range map[string]string{
		"NVIDIA_VISIBLE_DEVICES = \"all\"": "the container requests GPUs by NVIDIA_VISIBLE_DEVICES=",
		"TRANCHE_GPU_MEMORY = \"1GiB\"":    "jobspec",
	} {
		variable, _, _ := strings.Cut(name, " ")
		t.Run(variable, func(t *testing.T) {
			e.t = t
			s := e.job(cell{runtime: node.RuntimeTranche}, "refused-"+driver+"-"+strings.ToLower(variable), driver)
			s.devices, s.taskExtra = nil, "env {\n"+name+"\n}"
			start(t, e.Node, s)
			failsWith(t, e.Node, s.job, want)
			must.Nil(t, e.held())
		})
	}
}

// testBuild builds an image with a step that runs a container, which is tranche-runtime's as every other.
func testBuild(t *testing.T, engine dockerLike) {
	dir := t.TempDir()
	file := fmt.Sprintf("FROM %s\nRUN echo hello > /built\n", probeImage)
	must.NoError(t, os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(file), 0o644))
	cmd := engine.Command(deadline(t), "build", "--network", "host", "--tag", "tranche.local/built:test", dir)
	cmd.Env = append(cmd.Env, "DOCKER_BUILDKIT=0")
	out, err := output(cmd)
	must.NoError(t, err, must.Sprint(out))
	c := plain(node.RuntimeTranche, "cat", "/built")
	c.Image = "tranche.local/built:test"
	said, err := engine.Run(deadline(t), c).Output()
	must.NoError(t, err)
	must.Eq(t, "hello\n", string(said))
}

// testHealth has the engine look at a container's health, which it does by a process in it. The arguments, and the
// container's name, are the engine's question for it.
func testHealth(t *testing.T, engine dockerLike, healthy string, question ...string) {
	c := plain(node.RuntimeTranche, "sh", "-c", living)
	c.Detach, c.Flags = true, []string{"--health-cmd", "test -e /proc/1 || exit 1", "--health-interval", "1s"}
	out, err := output(engine.Run(deadline(t), c))
	must.NoError(t, err, must.Sprint(out))
	t.Cleanup(func() { _, _ = output(engine.Command(deadline(t), "rm", "--force", c.Name)) })
	must.NoError(t, until(deadline(t), func() (bool, error) {
		out, err := output(engine.Command(deadline(t), append(question, c.Name)...))
		return strings.TrimSpace(out) == healthy, err
	}))
}
