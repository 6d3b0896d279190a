package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/go-hclog"
	nstructs "github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/internal/size"
	"github.com/tranche-gpu/tranche/runtime"
	"github.com/tranche-gpu/tranche/runtime/edit"
	"github.com/tranche-gpu/tranche/runtime/nodeinfo/generate"
)

// claimRefreshPeriod is far less than the ten minutes after which the device plugin gives up on a claim that nobody
// refreshes.
const claimRefreshPeriod = time.Minute

// grant is a task's fractions of GPUs. The zero value is no GPU at all.
type grant struct {
	claims []*claim.Claim
	edits  edit.Modifier
	// hostMemoryBytes is what may be allocated beyond the limit of runtime.HostMemoryClaim.
	hostMemoryBytes uint64
}

// grants turns the claim tokens of tasks into grants.
type grants struct {
	config runtime.Config
	logger hclog.Logger
	// refreshPeriod is how often a start says of its claims that the container is still to come.
	refreshPeriod time.Duration

	mu     sync.Mutex
	ledger *claim.Ledger
}

// of returns what the task may use. Claims come from DeviceEnv, which device plugins alone fill: a job can write any
// variable into its env block, and would there show the token of another.
func (g *grants) of(
	ctx context.Context, cfg *drivers.TaskConfig, container string, hostMemoryBytes uint64,
) (*grant, error) {
	if !claim.HasTokens(cfg.DeviceEnv) {
		if hostMemoryBytes > 0 {
			return nil, errors.New("option gpu_host_memory: the task has no GPU beyond whose limit it could allocate; " +
				"ask for slices with device \"nvidia/slice\", or leave the option out")
		}
		return &grant{}, nil
	}
	ledger, err := g.open()
	if err != nil {
		return nil, fmt.Errorf("open the ledger of claims: %w", err)
	}
	claims, err := ledger.FromEnv(ctx, cfg.DeviceEnv)
	if err != nil {
		return nil, retriable(fmt.Errorf("look up the task's claims: %w", err))
	}
	if hostMemoryBytes > 0 && runtime.HostMemoryClaim(claims) == nil {
		return nil, errors.New("option gpu_host_memory: the task's GPUs have no limit beyond which it could allocate; leave the " +
			"option out, or ask for slices with device \"nvidia/slice\"")
	}
	edits, err := runtime.Prepare(ctx, ledger, g.runtimeConfig(), container, claims, hostMemoryBytes)
	if err != nil {
		return nil, retriable(fmt.Errorf("prepare the task's GPU: %w", err))
	}
	return &grant{claims: claims, edits: edits, hostMemoryBytes: hostMemoryBytes}, nil
}

// keepFresh says that the container of the claims is to come, again and again until stop is called.
func (g *grants) keepFresh(granted *grant) (stop func()) {
	if len(granted.claims) == 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var refreshing sync.WaitGroup
	refreshing.Go(func() {
		tick := time.NewTicker(g.refreshPeriod)
		defer tick.Stop()
		for ctx.Err() == nil {
			g.refresh(granted.claims)
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
	return func() {
		cancel()
		refreshing.Wait()
	}
}

func (g *grants) refresh(claims []*claim.Claim) {
	ledger, err := g.open()
	if err != nil {
		return // It was opened for the grant.
	}
	for _, c := range claims {
		if err := ledger.Refresh(c.ID, time.Now()); err != nil {
			g.logger.Warn("a claim whose container is being started may be given up", "claim", c.ID, "error", err)
		}
	}
}

// runtimeConfig has this process ask NVML, where the node's GPUs are not known: it is linked to do so.
func (g *grants) runtimeConfig() runtime.Config {
	cfg := g.config
	cfg.RefreshNodeInfo = generate.Refresher(g.logger)
	return cfg
}

// retriable tells Nomad whether to start the task again, for errors of which claim says that they pass. A claim token
// that the ledger does not have, or a node without a driver, will be the same next time.
func retriable(err error) error {
	var passing interface{ Retriable() bool }
	if errors.As(err, &passing) && passing.Retriable() {
		return nstructs.NewRecoverableError(err, true)
	}
	return err
}

// open opens the ledger at the first task that needs it: a node without GPUs has none.
func (g *grants) open() (*claim.Ledger, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ledger != nil {
		return g.ledger, nil
	}
	ledger, err := claim.Open(claim.Options{StateDir: g.config.StateDir, RunDir: g.config.RunDir, Logger: g.logger.Named("ledger")})
	if err == nil {
		g.ledger = ledger
	}
	return ledger, err
}

// refuseForeignClaims refuses a task whose environment holds a claim that no device plugin gave it. The message names
// the variable and never its value.
func refuseForeignClaims(cfg *drivers.TaskConfig) error {
	var foreign []string
	for name, value := range cfg.Env {
		if !claim.IsTokenVariable(name) {
			continue
		}
		if given, ok := cfg.DeviceEnv[name]; !ok || given != value {
			foreign = append(foreign, name)
		}
	}
	if len(foreign) == 0 {
		return nil
	}
	slices.Sort(foreign)
	return fmt.Errorf("the task's environment sets %s, which no device plugin gave it: a claim comes from a device "+
		"block only; remove the variable from the env or template block and ask for slices with device \"nvidia/slice\"",
		strings.Join(foreign, ", "))
}

// withGPU gives the container its fractions, and no other GPU. It stands last in the list of options, so that neither
// image nor job can put anything over what it mounts. What an image's ENV, or a CDI device's, says of GPUs goes here, of
// which tranche-runtime would make something of its own if the operator has tasks run by it.
func withGPU(g *grant) oci.SpecOpts {
	return specOption(func(s *Spec) error {
		s.Process.Env = edit.CleanEnv(s.Process.Env)
		if g.edits == nil {
			return nil
		}
		if err := g.edits.Modify(s); err != nil {
			return fmt.Errorf("give the container its GPU: %w", err)
		}
		return nil
	})
}

// describe says what the task got, for its events.
func (g *grant) describe() []string {
	var lines []string
	for _, c := range g.claims {
		lines = append(lines, describeClaim(c))
	}
	if c := runtime.HostMemoryClaim(g.claims); c != nil && g.hostMemoryBytes > 0 {
		lines = append(lines, fmt.Sprintf("GPU memory beyond the limit of claim %s: %s, on the host",
			c.ID, size.Format(g.hostMemoryBytes)))
	}
	return lines
}

func describeClaim(c *claim.Claim) string {
	gpu := fmt.Sprintf("%s #%d (%s)", c.GPU.Name, c.GPU.Index, c.GPU.UUID)
	switch {
	case c.Mode == claim.ModeTimeslice:
		return fmt.Sprintf("GPU: %s, shared with others and without a limit, claim %s", gpu, c.ID)
	case !c.Limited():
		return fmt.Sprintf("GPU: %s, all of it, claim %s", gpu, c.ID)
	case c.MPS != nil:
		return fmt.Sprintf("GPU memory: %s of %s, %d slices, behind an MPS control daemon with at most %d%% of the GPU at once, "+
			"claim %s", size.Format(c.LimitBytes), gpu, len(c.Slices), c.MPS.Percentage, c.ID)
	}
	return fmt.Sprintf("GPU memory: %s of %s, %d slices, claim %s", size.Format(c.LimitBytes), gpu, len(c.Slices), c.ID)
}

// checkGPU checks the options about GPUs.
func (c *TaskConfig) checkGPU(plugin *Config) error {
	_, err := c.gpuHostMemoryBytes(plugin)
	return errors.Join(err, c.checkAsks())
}

// gpuHostMemoryBytes is gpu_host_memory, of which validate has made sure.
func (c *TaskConfig) gpuHostMemoryBytes(plugin *Config) (uint64, error) {
	most, err := plugin.gpuHostMemoryMaxBytes()
	if err != nil {
		return 0, err
	}
	return runtime.GPUHostMemory("option gpu_host_memory", c.GPUHostMemory, most)
}
