// Package gpu gives a task's container the GPUs of its claims, and emits events of their health. It makes no claims: device
// plugins do.
package gpu

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/driver/recoverable"
	"github.com/tranche-gpu/tranche/internal/size"
	"github.com/tranche-gpu/tranche/runtime"
	"github.com/tranche-gpu/tranche/runtime/compute"
	"github.com/tranche-gpu/tranche/runtime/edit"
	"github.com/tranche-gpu/tranche/runtime/gpuinfo/generate"
)

// refreshPeriod is far less than the ten minutes after which the device plugin may supersede a claim that is not refreshed.
const refreshPeriod = time.Minute

// Claims prepares the claims of tasks. Make one with New.
type Claims struct {
	// RefreshPeriod is how often the claims of a start are refreshed. It may be set before the first start.
	RefreshPeriod time.Duration

	config runtime.Config
	logger hclog.Logger

	mu     sync.Mutex
	ledger *claim.Ledger // nil until a task needs it
}

// New returns what prepares claims. It reads nothing yet.
func New(config runtime.Config, logger hclog.Logger) *Claims {
	// This process is linked to query NVML where the node's GPUs are not known.
	config.RefreshNodeInfo = generate.Refresher(logger)
	return &Claims{RefreshPeriod: refreshPeriod, config: config, logger: logger}
}

// Prepared is a task's claims and what they change in the container's OCI spec. The zero value is no GPU.
type Prepared struct {
	Claims []*claim.Claim
	// Edits gives the container its GPUs; nil for none.
	Edits edit.Modifier
	// HostMemoryBytes is what may be allocated beyond the limit of runtime.HostMemoryClaim.
	HostMemoryBytes uint64
}

// Options is what a task requests of its GPUs beside the device block.
type Options struct {
	// HostMemoryBytes is what the container may allocate beyond the limit of runtime.HostMemoryClaim.
	HostMemoryBytes uint64
	// Compute is the part of its GPUs' time that the task states, and ComputeBounds what the operator allows.
	Compute       compute.Request
	ComputeBounds compute.Bounds
}

// withoutGPU refuses options of a task that has no GPU.
func (o Options) withoutGPU() error {
	if o.HostMemoryBytes > 0 {
		return errors.New("option gpu_host_memory: the task has no GPU beyond whose limit it could allocate; " +
			"ask for slices with device \"nvidia/slice\", or leave the option out")
	}
	if o.Compute.Stated() {
		return errors.New("option gpu_compute: the task has no GPU whose time it could share; ask for slices with " +
			"device \"nvidia/slice\", or leave the option out")
	}
	return nil
}

// Prepare returns what the task's container may use. Claims come from DeviceEnv, which device plugins alone fill: a job can
// write any variable into its env block, and would there show the token of another. Errors that pass are recoverable.
func (c *Claims) Prepare(
	ctx context.Context, cfg *drivers.TaskConfig, container string, o Options,
) (*Prepared, error) {
	if !claim.HasTokens(cfg.DeviceEnv) {
		return &Prepared{}, o.withoutGPU()
	}
	ledger, err := c.open()
	if err != nil {
		return nil, fmt.Errorf("open the ledger of claims: %w", err)
	}
	claims, err := ledger.FromEnv(ctx, cfg.DeviceEnv)
	if err != nil {
		return nil, retriable(fmt.Errorf("look up the task's claims: %w", err))
	}
	if o.HostMemoryBytes > 0 && runtime.HostMemoryClaim(claims) == nil {
		return nil, errors.New("option gpu_host_memory: the task's GPUs have no limit beyond which it could allocate; leave the " +
			"option out, or ask for slices with device \"nvidia/slice\"")
	}
	if err := o.Compute.Apply(ctx, ledger, c.config.RunDir, o.ComputeBounds, "option gpu_compute", claims); err != nil {
		return nil, retriable(err)
	}
	edits, err := runtime.Prepare(ctx, ledger, c.config, container, claims, o.HostMemoryBytes)
	if err != nil {
		return nil, retriable(fmt.Errorf("prepare the task's GPU: %w", err))
	}
	return &Prepared{Claims: claims, Edits: edits, HostMemoryBytes: o.HostMemoryBytes}, nil
}

// KeepFresh refreshes the claims until stop is called, which returns when that has ended: their container is to come.
func (c *Claims) KeepFresh(p *Prepared) (stop func()) {
	if len(p.Claims) == 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var refreshing sync.WaitGroup
	refreshing.Go(func() {
		tick := time.NewTicker(c.RefreshPeriod)
		defer tick.Stop()
		for { // Begin has refreshed them just now.
			select {
			case <-tick.C:
				c.refresh(p.Claims)
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		cancel()
		refreshing.Wait()
	}
}

func (c *Claims) refresh(claims []*claim.Claim) {
	ledger, err := c.open()
	if err != nil {
		return // Prepare opened it.
	}
	for _, claim := range claims {
		if err := ledger.Refresh(claim.ID, time.Now()); err != nil {
			c.logger.Warn("a claim whose container is being started may be given up", "claim", claim.ID, "error", err)
		}
	}
}

// Missing returns what keeps the programs of a started task from finding its GPU: the hook that bound the claims has looked
// at the container's image. It is for the task's events only, so a ledger that cannot be read now is no error.
func (c *Claims) Missing(ctx context.Context, p *Prepared) []string {
	if len(p.Claims) == 0 {
		return nil
	}
	ledger, err := c.open()
	if err != nil {
		return nil
	}
	claims, _, err := ledger.List(ctx)
	if err != nil {
		return nil
	}
	var lines []string
	for _, bound := range claims {
		mine := slices.ContainsFunc(p.Claims, func(c *claim.Claim) bool { return c.ID == bound.ID })
		if mine && bound.Container != nil && bound.Container.Lacks != "" {
			lines = append(lines, "GPU: "+bound.Container.Lacks)
		}
	}
	return slices.Compact(lines)
}

// retriable has Nomad start the task again after an error that claim says passes. A claim token that the ledger does not
// have, or a node without a driver, will be the same next time.
func retriable(err error) error {
	var passing interface{ Retriable() bool }
	if errors.As(err, &passing) && passing.Retriable() {
		return recoverable.Error(err)
	}
	return err
}

// open opens the ledger at the first task that needs it: a node without GPUs has none.
func (c *Claims) open() (*claim.Ledger, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ledger != nil {
		return c.ledger, nil
	}
	ledger, err := claim.Open(claim.Options{StateDir: c.config.StateDir, RunDir: c.config.RunDir, Logger: c.logger.Named("ledger")})
	if err == nil {
		c.ledger = ledger
	}
	return ledger, err
}

// WithGPU gives the container its GPUs, and no other. It stands last in the list of options, so that neither image nor job
// can put anything over what it mounts. It removes what an image's ENV, or a CDI device's, says of GPUs: tranche-runtime would
// give the container a GPU by that if the operator has tasks run by it.
func (p *Prepared) WithGPU() oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		s.Process.Env = edit.CleanEnv(s.Process.Env)
		if p.Edits == nil {
			return nil
		}
		if err := p.Edits.Modify(s); err != nil {
			return fmt.Errorf("give the container its GPU: %w", err)
		}
		return nil
	}
}

// Describe returns what the task has got, a line for each of its events.
func (p *Prepared) Describe() []string {
	var lines []string
	for _, c := range p.Claims {
		lines = append(lines, describe(c))
		if c.Governed() {
			lines = append(lines, fmt.Sprintf("GPU compute: %s of %s #%d, claim %s", compute.Describe(*c.Compute), c.GPU.Name,
				c.GPU.Index, c.ID))
		}
	}
	lines = append(lines, p.describeShared()...)
	if c := runtime.HostMemoryClaim(p.Claims); c != nil && p.HostMemoryBytes > 0 {
		lines = append(lines, fmt.Sprintf("GPU memory beyond the limit of claim %s: %s, on the host",
			c.ID, size.Format(p.HostMemoryBytes)))
	}
	return lines
}

// describeShared returns a line for each GPU on which the task has several claims with a limit, since device blocks may land on
// the same GPU.
func (p *Prepared) describeShared() []string {
	type shared struct {
		claims     int
		limitBytes uint64
	}
	byGPU := make(map[string]*shared)
	var gpus []claim.GPU
	for _, c := range p.Claims {
		if !c.Limited() {
			continue
		}
		if byGPU[c.GPU.UUID] == nil {
			byGPU[c.GPU.UUID] = &shared{}
			gpus = append(gpus, c.GPU)
		}
		byGPU[c.GPU.UUID].claims++
		byGPU[c.GPU.UUID].limitBytes += c.LimitBytes
	}
	var lines []string
	for _, g := range gpus {
		if s := byGPU[g.UUID]; s.claims > 1 {
			lines = append(lines, fmt.Sprintf("GPU memory: %d device blocks are on %s #%d (%s): their limits add up to %s, and each "+
				"allocation must fit into one of them", s.claims, g.Name, g.Index, g.UUID, size.Format(s.limitBytes)))
		}
	}
	return lines
}

func describe(c *claim.Claim) string {
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

// CheckEnv refuses a task whose environment holds a claim that no device plugin gave it, or requests a GPU.
func CheckEnv(cfg *drivers.TaskConfig) error {
	return errors.Join(checkTokens(cfg), checkVariables(cfg))
}

// checkTokens refuses claims that no device plugin gave. The message names the variable and never its value.
func checkTokens(cfg *drivers.TaskConfig) error {
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
