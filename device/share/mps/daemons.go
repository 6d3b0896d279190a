package mps

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	ndevice "github.com/hashicorp/nomad/plugins/device"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/contextcost"
	"github.com/tranche-gpu/tranche/device/mps"
	"github.com/tranche-gpu/tranche/device/share"
	"github.com/tranche-gpu/tranche/internal/changelog"
	"github.com/tranche-gpu/tranche/internal/size"
)

const (
	// reconcileWait is how long Reconcile waits for daemons, so that taking over one that runs never makes its slices
	// unhealthy.
	reconcileWait = 5 * time.Second

	// changeTimeout bounds one change of a GPU's daemon.
	changeTimeout = 90 * time.Second
)

// Manager runs the MPS control daemons. It is an *mps.Manager but in tests.
type Manager interface {
	Ensure(ctx context.Context, uuid string) error
	Serve(ctx context.Context, uuid string) error
	Assign(ctx context.Context, uuid string, namespaces []mps.Namespace) error
	Clients(ctx context.Context, uuid string) ([]int, error)
	Status(uuid string) mps.Status
	Changed() <-chan struct{}
	Left() ([]string, error)
	Owns(uuid string) bool
	Has(uuid string, pid int) bool
	Release(ctx context.Context, uuid string) error
	Stop(ctx context.Context, uuid string) error
	Close()
}

// Options configure Daemons.
type Options struct {
	DriverRoot, RunDir string
	// Ignored are UUIDs of GPUs that are not offered.
	Ignored map[string]bool
	Driver  *share.Driver
	Ledger  *share.Ledger
	Costs   share.ContextCosts
	Manager Manager
	Logger  hclog.Logger
	// Wake has the GPUs looked at again.
	Wake func()
}

// Daemons puts GPUs behind their MPS control daemons, and takes them back.
type Daemons struct {
	Options
	log     changelog.Log
	running sync.WaitGroup

	// assigning is held while the claims of a GPU get their namespaces, so that an older list of claims is not the last one.
	assigning sync.Mutex

	mu sync.Mutex
	// changing are GPUs whose daemon is being changed.
	changing map[string]bool
	// waits is why a GPU is not yet behind its daemon, or still is.
	waits map[string]string
}

// NewDaemons returns Daemons that have started nothing.
func NewDaemons(o Options) *Daemons {
	return &Daemons{Options: o, changing: make(map[string]bool), waits: make(map[string]string)}
}

// waitsError says that a GPU is not, or not yet, as it is configured.
type waitsError struct{ reason string }

func (e *waitsError) Error() string   { return e.reason }
func (e *waitsError) Retriable() bool { return true }

// Changed receives a value when the status of a daemon has changed.
func (d *Daemons) Changed() <-chan struct{} { return d.Manager.Changed() }

// Serves reports whether a process is the daemon of a GPU in mode mps or one of its servers.
func (d *Daemons) Serves(g *share.GPU, pid int) bool {
	return g.Mode == claim.ModeMPS && d.Manager.Has(g.UUID, pid)
}

// Reconcile starts and ends daemons as the GPUs are configured. Changes that take longer than reconcileWait continue in the
// background.
func (d *Daemons) Reconcile(ctx context.Context, gpus []share.GPU) {
	known := make(map[string]share.GPU)
	var all []<-chan struct{}
	for _, g := range gpus {
		known[g.UUID] = g
		if g.Mode != claim.ModeMPS {
			continue
		}
		switch {
		case g.Gone:
			all = append(all, d.change(ctx, g.UUID, func(ctx context.Context) error { return d.stop(ctx, g.UUID) }))
		case g.Answers && g.Problem == "":
			all = append(all, d.change(ctx, g.UUID, func(ctx context.Context) error { return d.ensure(ctx, &g) }))
		}
	}
	left, err := d.Manager.Left()
	if d.log.Changed("directories", err) && err != nil {
		d.Logger.Error("cannot list the MPS control daemons", "run_dir", d.RunDir, "error", err)
	}
	for _, uuid := range left {
		g, present := known[uuid]
		if present && g.Mode != claim.ModeMPS && g.Answers || d.Ignored[uuid] {
			all = append(all, d.change(ctx, uuid, func(ctx context.Context) error { return d.release(ctx, uuid) }))
		}
	}
	timeout := time.NewTimer(reconcileWait)
	defer timeout.Stop()
	for _, done := range all {
		select {
		case <-done:
		case <-timeout.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// change starts a change of a GPU's daemon, unless one is under way, and returns a channel that is closed when it is done.
// The error becomes the reason why the GPU's devices are unhealthy.
func (d *Daemons) change(ctx context.Context, uuid string, work func(context.Context) error) <-chan struct{} {
	done := make(chan struct{})
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.changing[uuid] {
		close(done)
		return done
	}
	d.changing[uuid] = true
	d.running.Go(func() {
		defer close(done)
		timed, cancel := context.WithTimeout(ctx, changeTimeout)
		defer cancel()
		d.changed(ctx, uuid, work(timed))
	})
	return done
}

// changed records the outcome of a change.
func (d *Daemons) changed(ctx context.Context, uuid string, err error) {
	reason := ""
	// The daemon's own status comes from its manager.
	if down := (*mps.DownError)(nil); err != nil && !errors.As(err, &down) {
		reason = err.Error()
	}
	d.mu.Lock()
	changed := d.waits[uuid] != reason && ctx.Err() == nil
	delete(d.changing, uuid)
	if changed {
		d.waits[uuid] = reason
	}
	d.mu.Unlock()
	if changed && reason != "" {
		d.Logger.Warn("a GPU is not behind its MPS control daemon as configured", "gpu", uuid, "reason", reason)
	}
	if changed {
		d.Wake()
	}
}

// ensure puts a GPU behind its daemon. The memory of a context is measured before: afterwards only the daemon can create
// one.
func (d *Daemons) ensure(ctx context.Context, g *share.GPU) error {
	if !d.Manager.Owns(g.UUID) {
		if err := d.checkUnused(ctx, g); err != nil {
			return err
		}
	}
	if _, err := d.contextBytes(ctx, g); err != nil {
		return err
	}
	if err := d.Manager.Ensure(ctx, g.UUID); err != nil {
		return err
	}
	bypassing, err := d.bypassing(ctx, g.UUID)
	if err != nil {
		return err
	}
	if len(bypassing) > 0 {
		return bypassError(g, bypassing)
	}
	err = d.Manager.Serve(ctx, g.UUID)
	if failed := (*mps.ServerError)(nil); errors.As(err, &failed) {
		if bypassing, listErr := d.computing(ctx, g.UUID); listErr == nil && len(bypassing) > 0 {
			return bypassError(g, bypassing)
		}
	}
	if err != nil {
		return err
	}
	return d.assign(ctx, g.UUID)
}

// assign gives each claim on a GPU its namespace, if the daemon has namespaces: also dormant ones, which may start again, and again
// after a restart of the daemon.
func (d *Daemons) assign(ctx context.Context, uuid string) error {
	if !d.Manager.Status(uuid).Namespaces {
		return nil
	}
	d.assigning.Lock()
	defer d.assigning.Unlock()
	claims, _, err := d.Ledger.List(ctx)
	if err != nil {
		return fmt.Errorf("list the claims on %s: %w", uuid, err)
	}
	var wanted []mps.Namespace
	for _, c := range claims {
		if c.Mode == claim.ModeMPS && c.PhysicalGPU() == uuid {
			wanted = append(wanted, namespaceOf(c))
		}
	}
	return d.Manager.Assign(ctx, uuid, wanted)
}

// namespaceOf returns the namespace of a claim. Where the driver limits the container's memory, programs see the limit as the GPU's
// total, which a limit of the namespace would not do.
func namespaceOf(c *claim.Claim) mps.Namespace {
	n := mps.Namespace{Name: c.ID, Percentage: c.MPS.Percentage}
	if !c.ByDriver() {
		n.LimitBytes = c.LimitBytes
	}
	return n
}

// enforced returns the GPU with what there is to say about its driver's limits: they are used with namespaces only.
func (d *Daemons) enforced(g *share.GPU) *share.GPU {
	if g.NoDriverLimits != "" || d.Manager.Status(g.UUID).Namespaces {
		return g
	}
	without := *g
	without.NoDriverLimits = "its MPS control daemon has no namespaces, which come with driver 615"
	return &without
}

// checkEnforcement returns an error if the driver is to hold tasks to their limits, and does not.
func (d *Daemons) checkEnforcement(g *share.GPU) error {
	if g = d.enforced(g); g.Enforcement == claim.EnforcementDriver && g.NoDriverLimits != "" {
		return &waitsError{fmt.Sprintf("enforcement = %q, but the driver cannot limit memory on the GPU %s: %s", g.Enforcement, g,
			g.NoDriverLimits)}
	}
	return nil
}

// contextBytes returns the memory of a context on a GPU that is behind its daemon, or is to be.
func (d *Daemons) contextBytes(ctx context.Context, g *share.GPU) (uint64, error) {
	if bytes, known := d.Costs.Known(g.CostKey()); known {
		return bytes, nil
	}
	if !d.Manager.Owns(g.UUID) {
		return d.Costs.Cost(ctx, g.CostKey())
	}
	if d.log.Changed("context on "+g.UUID, errNotMeasured) {
		d.Logger.Warn("cannot measure the memory of a CUDA context on a GPU behind an MPS control daemon, assuming a default: "+
			"set context_memory to override it", "gpu", g.UUID, "memory", size.Format(contextcost.DefaultBytes))
	}
	return contextcost.DefaultBytes, nil
}

var errNotMeasured = errors.New("not measured")

// stop ends the daemon of a GPU that is gone: nothing can compute there, and what its server holds of the GPU would
// prevent the GPU's return.
func (d *Daemons) stop(ctx context.Context, uuid string) error {
	if !d.Manager.Owns(uuid) {
		return nil
	}
	return d.Manager.Stop(ctx, uuid)
}

// release takes back a GPU that is in another mode now, when no task of mode mps uses it any more.
func (d *Daemons) release(ctx context.Context, uuid string) error {
	claims, _, err := d.Ledger.List(ctx)
	if err != nil {
		return err
	}
	for _, c := range claims {
		if c.Mode == claim.ModeMPS && c.PhysicalGPU() == uuid && d.Ledger.InUse(c) {
			return &waitsError{"waits for claim " + c.ID + ", whose GPU is in mode mps until its task has ended"}
		}
	}
	err = d.Manager.Release(ctx, uuid)
	if busy := (*mps.BusyError)(nil); errors.As(err, &busy) {
		return &waitsError{"waits for processes that compute through the MPS control daemon, from when the GPU was in mode mps"}
	}
	return err
}

// problem returns why a GPU's daemon cannot be used; empty if it can.
func (d *Daemons) problem(uuid string) string {
	d.mu.Lock()
	reason := d.waits[uuid]
	d.mu.Unlock()
	if status := d.Manager.Status(uuid); reason == "" && !status.Running {
		reason = "the MPS control daemon does not run: " + status.Reason
	}
	return reason
}

// Leaving returns an error while a GPU that is in another mode is still behind a daemon.
func (d *Daemons) Leaving(g *share.GPU) error {
	if g.Mode == claim.ModeMPS || !d.Manager.Owns(g.UUID) {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	reason := d.waits[g.UUID]
	if reason == "" {
		reason = "waits for the end of the MPS control daemon, from when the GPU was in mode mps"
	}
	return &waitsError{reason}
}

// MarkLeaving makes the devices of such a GPU unhealthy.
func (d *Daemons) MarkLeaving(g *share.GPU, group *ndevice.DeviceGroup) {
	if err := d.Leaving(g); err != nil {
		share.MarkUnhealthy(group, err.Error())
	}
}

// Close waits for changes under way and stops watching the daemons, which continue running.
func (d *Daemons) Close() {
	d.running.Wait()
	d.Manager.Close()
}
