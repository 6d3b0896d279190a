package device

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/internal/simtest"
	"github.com/tranche-gpu/tranche/device/mig"
	"github.com/tranche-gpu/tranche/device/nvml"
)

// Processes beside the test's, which is the test binary itself again: what they are to do is in these variables.
const (
	childMonitors = "TRANCHE_TEST_MONITOR_GPUS"
	childReserves = "TRANCHE_TEST_RESERVE_AND_DIE"
)

// simChildMain is all that such a process does.
func simChildMain() {
	if root := os.Getenv(childMonitors); root != "" {
		_, err := nvml.New(root).Read(context.Background())
		fmt.Println("reading:", err)
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	if text := os.Getenv(childEdits); text != "" {
		if err := editMain(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if text := os.Getenv(childReserves); text != "" {
		var order dyingOrder
		err := json.Unmarshal([]byte(text), &order)
		if err == nil {
			err = order.reserve()
		}
		fmt.Println("it did not die:", err)
		os.Exit(1)
	}
}

// startMonitor starts a program that manages GPUs, as DCGM does, and returns how to end it.
func startMonitor(t *testing.T, sim *simtest.Node) (end func()) {
	t.Helper()
	command := exec.CommandContext(t.Context(), os.Args[0])
	command.Env = append(os.Environ(), childMonitors+"="+sim.DriverRoot)
	stdin, err := command.StdinPipe()
	must.NoError(t, err)
	stdout, err := command.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, command.Start())
	said := make([]byte, 100)
	n, err := stdout.Read(said)
	must.NoError(t, err)
	must.Eq(t, "reading: <nil>\n", string(said[:n]))
	return sync.OnceFunc(func() {
		_ = stdin.Close()
		must.NoError(t, command.Wait())
	})
}

// dyingOrder is what a plugin is to reserve, and at which point it dies.
type dyingOrder struct {
	Point string
	Env   []string // as the simulated nvidia-smi needs it
	SMI   string
	// Config is the plugin's configuration as Nomad sends it.
	Config     []byte
	DriverRoot string
	IDs        []string
}

func (o dyingOrder) reserve() error {
	p := New(hclog.NewNullLogger(), "v0.0.1")
	p.newNVML = func(string) nvml.Interface { return &dyingLibrary{nvml.New(o.DriverRoot), o} }
	if err := p.SetConfig(&base.Config{PluginConfig: o.Config}); err != nil {
		return err
	}
	if _, err := p.Reserve(o.IDs); err != nil {
		return err
	}
	o.dieAt("completed")
	return errors.New("it reserved")
}

func (o dyingOrder) dieAt(point string) {
	if o.Point == point {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

// dyingLibrary ends its process at a chosen call.
type dyingLibrary struct {
	*nvml.Library
	order dyingOrder
}

func (l *dyingLibrary) DestroyInstance(ctx context.Context, uuid string, gpuInstance int) error {
	l.order.dieAt("claimed")
	defer l.order.dieAt("destroyed")
	return l.Library.DestroyInstance(ctx, uuid, gpuInstance)
}

func (l *dyingLibrary) CreateInstance(
	ctx context.Context, uuid string, profile mig.Profile, at mig.Place,
) (nvml.MIGInstance, error) {
	if l.order.Point == "half" { // the GPU instance without its compute instance
		command := exec.CommandContext(ctx, l.order.SMI, "mig", "-i", "0", "-cgi", fmt.Sprintf("%s:%d", profile.Name, at.Start))
		command.Env = l.order.Env
		if out, err := command.CombinedOutput(); err != nil {
			return nvml.MIGInstance{}, fmt.Errorf("%w: %s", err, out)
		}
		l.order.dieAt("half")
	}
	defer l.order.dieAt("made")
	return l.Library.CreateInstance(ctx, uuid, profile, at)
}

// A plugin that is killed while it reserves leaves nothing for good, wherever it was.
func TestDemandSim_Killed(t *testing.T) {
	for point, want := range map[string]string{
		"claimed": "1g.10gb:6", "destroyed": "", "half": "3g.40gb:4", "made": "3g.40gb:4", "completed": "3g.40gb:4",
	} {
		t.Run(point, func(t *testing.T) {
			onSimulator(t, "h100x8.conf", map[string]any{"slice_memory": "9GiB"}, func(t *testing.T, n *simNode) {
				g := n.gpus()[0]
				n.reserve(g, 0)
				must.Eq(t, "1g.10gb:6", n.profilesOf(0))
				n.dies(point, sliceIDs(g, 0, 1, 2, 3))
				must.Eq(t, want, n.profilesOf(0))

				n.restart()
				must.Eq(t, upTo(8), healthyOf(n.look()[0]), must.Sprint("four slices are the dead plugin's, four can be had"))
				must.Eq(t, want, n.profilesOf(0), must.Sprint("its creation may just be slow"))
				must.Len(t, 1, claimsOf(t, n.plugin))
				must.Eq(t, point != "completed", claimsOf(t, n.plugin)[0].Making())
				if point != "completed" {
					_, err := n.plugin.Reserve(sliceIDs(g, 3, 4))
					var held *claim.HeldError
					must.True(t, errors.As(err, &held), must.Sprint(err))
					must.ErrorContains(t, err, "which a process that makes its MIG instance still uses")
				}
				other := n.reserve(g, 7)
				must.Less(t, 4, other.MIG.Start, must.Sprint("the dead plugin's place is kept"))
				end := n.start(other)

				n.later(claim.MakeWithin + time.Minute)
				n.look()
				if point == "completed" {
					n.unattended()
				}
				n.agrees()
				must.Len(t, 1, n.record(0))
				end()
				n.unattended()
				n.agrees()
				must.SliceEmpty(t, n.record(0))
				must.Eq(t, upTo(8), healthyOf(n.look()[0]))
				n.later(0)
				must.Eq(t, "7g.80gb", n.reserve(g, upTo(8)...).MIG.Profile)
			})
		})
	}
}

// dies has another plugin reserve, and be killed at a point.
func (n *simNode) dies(point string, ids []string) {
	n.t.Helper()
	order, err := json.Marshal(dyingOrder{
		Point: point, Env: n.sim.SMIEnv(), SMI: n.sim.SMIPath(), Config: pluginConfig(n.t, n.options).PluginConfig,
		DriverRoot: n.sim.DriverRoot, IDs: ids,
	})
	must.NoError(n.t, err)
	command := exec.CommandContext(n.t.Context(), os.Args[0])
	command.Env = append(os.Environ(), childReserves+"="+string(order))
	output, err := command.CombinedOutput()
	var exit *exec.ExitError
	must.True(n.t, errors.As(err, &exit), must.Sprint(err))
	must.Eq(n.t, syscall.SIGKILL, exit.Sys().(syscall.WaitStatus).Signal(), must.Sprint(strings.TrimSpace(string(output))))
}
