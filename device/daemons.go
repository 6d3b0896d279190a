package device

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/memsize"
	"github.com/tranche-gpu/tranche/device/contextcost"
	"github.com/tranche-gpu/tranche/device/mps"
)

// daemonsSettle is how long a look at the GPUs waits for the MPS control daemons, so that a daemon that is only taken over
// makes its slices unhealthy for no moment.
const daemonsSettle = 5 * time.Second

// daemonKeeper has the MPS control daemons: see mps.Manager.
type daemonKeeper interface {
	Ensure(ctx context.Context, uuid string) error
	Serve(ctx context.Context, uuid string) error
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

// daemons puts GPUs behind their MPS control daemons, and takes them back.
type daemons struct {
	node   *node
	keeper daemonKeeper
	under  sync.WaitGroup

	mu sync.Mutex
	// busy are GPUs of which something is under way.
	busy map[string]bool
	// waits is why a GPU is not behind its daemon yet, or still.
	waits map[string]string
}

func newDaemons(n *node) *daemons {
	return &daemons{
		node: n, busy: make(map[string]bool), waits: make(map[string]string),
		keeper: mps.New(mps.Options{DriverRoot: n.driverRoot, RunDir: n.runDir, GPUs: n.nvml, Logger: n.logger.Named("mps")}),
	}
}

// waitsError says that a GPU is not, or not yet, what the configuration says.
type waitsError struct{ reason string }

func (e *waitsError) Error() string   { return e.reason }
func (e *waitsError) Retriable() bool { return true }

// tend has each GPU behind a daemon, or not, as the configuration says. What takes longer goes on behind it.
func (d *daemons) tend(ctx context.Context) {
	known := make(map[string]gpu)
	var all []<-chan struct{}
	for _, g := range d.node.inventory.list() {
		known[g.UUID] = g
		if g.mode != claim.ModeMPS {
			continue
		}
		switch {
		case g.gone:
			all = append(all, d.do(ctx, g.UUID, func(ctx context.Context) error { return d.stop(ctx, g.UUID) }))
		case g.answers && g.problem == "":
			all = append(all, d.do(ctx, g.UUID, func(ctx context.Context) error { return d.ensure(ctx, &g) }))
		}
	}
	left, err := d.keeper.Left()
	if d.node.reported.changed("directories of MPS control daemons", err) && err != nil {
		d.node.logger.Error("cannot tell what MPS control daemons there are", "run_dir", d.node.runDir, "error", err)
	}
	for _, uuid := range left {
		g, there := known[uuid]
		if there && g.mode != claim.ModeMPS && g.answers || d.node.ignored[uuid] {
			all = append(all, d.do(ctx, uuid, func(ctx context.Context) error { return d.release(ctx, uuid) }))
		}
	}
	enough := time.NewTimer(daemonsSettle)
	defer enough.Stop()
	for _, done := range all {
		select {
		case <-done:
		case <-enough.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// do does something about a GPU, unless something is under way already. What it waits for is told to Nomad.
func (d *daemons) do(ctx context.Context, uuid string, work func(context.Context) error) <-chan struct{} {
	done := make(chan struct{})
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.busy[uuid] {
		close(done)
		return done
	}
	d.busy[uuid] = true
	d.under.Go(func() {
		defer close(done)
		timed, cancel := context.WithTimeout(ctx, reserveTimeout)
		defer cancel()
		d.note(ctx, uuid, work(timed))
	})
	return done
}

// note remembers what came of something.
func (d *daemons) note(ctx context.Context, uuid string, err error) {
	reason := ""
	// How the daemon itself is, its keeper tells.
	if down := (*mps.DownError)(nil); err != nil && !errors.As(err, &down) {
		reason = err.Error()
	}
	d.mu.Lock()
	changed := d.waits[uuid] != reason && ctx.Err() == nil
	delete(d.busy, uuid)
	if changed {
		d.waits[uuid] = reason
	}
	d.mu.Unlock()
	if changed && reason != "" {
		d.node.logger.Warn("a GPU is not behind its MPS control daemon as the configuration says", "gpu", uuid, "reason", reason)
	}
	if changed {
		d.node.wake()
	}
}

// ensure puts a GPU behind its daemon. What a context costs is measured before: afterwards nobody but the daemon can make
// one.
func (d *daemons) ensure(ctx context.Context, g *gpu) error {
	if !d.keeper.Owns(g.UUID) {
		strangers, err := d.strangers(ctx, g.UUID)
		if err != nil {
			return err
		}
		if len(strangers) > 0 {
			return &waitsError{fmt.Sprintf("the GPU %s goes behind its MPS control daemon when %s is gone: the daemon's server has to "+
				"be the only one to compute on it", g, strings.Join(strangers, ", "))}
		}
	}
	if _, err := d.contextBytes(ctx, g); err != nil {
		return err
	}
	if err := d.keeper.Ensure(ctx, g.UUID); err != nil {
		return err
	}
	past, err := d.past(ctx, g.UUID)
	if err != nil {
		return err
	}
	if len(past) > 0 {
		return pastDaemon(g, past)
	}
	err = d.keeper.Serve(ctx, g.UUID)
	if failed := (*mps.ServerError)(nil); errors.As(err, &failed) {
		if past, listErr := d.holders(ctx, g.UUID); listErr == nil && len(past) > 0 {
			return pastDaemon(g, past)
		}
	}
	return err
}

// pastDaemon says who computes on a GPU past its daemon: programs of the tasks find no GPU then.
func pastDaemon(g *gpu, pids []int) error {
	by, end := "process", "end it"
	if len(pids) > 1 {
		by, end = "processes", "end them"
	}
	return &waitsError{fmt.Sprintf("the GPU %s is computed on past its MPS control daemon, by %s %s: %s", g, by,
		strings.Trim(strings.ReplaceAll(fmt.Sprint(pids), " ", ", "), "[]"), end)}
}

// past are the processes that compute on a GPU past its daemon. A client that has just ended may be on the driver's list and
// not on the daemon's any more, so that two looks have to agree.
func (d *daemons) past(ctx context.Context, uuid string) ([]int, error) {
	first, err := d.lookPast(ctx, uuid)
	if err != nil || len(first) == 0 {
		return nil, err
	}
	second, err := d.lookPast(ctx, uuid)
	both := slices.DeleteFunc(second, func(pid int) bool { return !slices.Contains(first, pid) })
	return both, err
}

// lookPast looks for processes that are neither the server, nor in a container with a claim, nor clients that the daemon
// knows.
func (d *daemons) lookPast(ctx context.Context, uuid string) ([]int, error) {
	found, err := d.holders(ctx, uuid)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	claims, _, err := d.node.ledger.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("find the claims on %s: %w", uuid, err)
	}
	var living []*claim.Claim
	for _, c := range claims {
		if c.Container != nil && d.node.holds(c) {
			living = append(living, c)
		}
	}
	clients, err := d.keeper.Clients(ctx, uuid)
	if err != nil {
		return nil, err
	}
	members := membersOf(living)
	return slices.DeleteFunc(found, func(pid int) bool {
		return slices.Contains(clients, pid) || members.of(pid) != stranger
	}), nil
}

// holders are the processes that compute on a GPU, but for its daemon's server.
func (d *daemons) holders(ctx context.Context, uuid string) ([]int, error) {
	processes, err := d.node.nvml.Processes(ctx, uuid)
	if err != nil {
		return nil, fmt.Errorf("list the processes on %s: %w", uuid, err)
	}
	var pids []int
	for _, p := range processes {
		if !d.keeper.Has(uuid, p.PID) {
			pids = append(pids, p.PID)
		}
	}
	return pids, nil
}

// strangers are those who use a GPU past its daemon.
func (d *daemons) strangers(ctx context.Context, uuid string) ([]string, error) {
	claims, _, err := d.node.ledger.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("find the claims on %s: %w", uuid, err)
	}
	var strangers []string
	for _, c := range claims {
		if c.Mode != claim.ModeMPS && c.PhysicalGPU() == uuid && d.node.holds(c) {
			strangers = append(strangers, "claim "+c.ID)
		}
	}
	processes, err := d.node.nvml.Processes(ctx, uuid)
	if err != nil {
		return nil, fmt.Errorf("list the processes on %s: %w", uuid, err)
	}
	for _, p := range processes {
		strangers = append(strangers, fmt.Sprintf("process %d", p.PID))
	}
	return strangers, nil
}

// contextBytes is what a context costs on a GPU that is behind its daemon, or is to be.
func (d *daemons) contextBytes(ctx context.Context, g *gpu) (uint64, error) {
	if bytes, known := d.node.costs.Known(g.costKey()); known {
		return bytes, nil
	}
	if !d.keeper.Owns(g.UUID) {
		return d.node.costs.Cost(ctx, g.costKey())
	}
	if d.node.reported.changed("context on "+g.UUID, errNotMeasured) {
		d.node.logger.Warn("what a CUDA context costs cannot be measured on a GPU behind an MPS control daemon, assuming a default: "+
			"set context_memory to override it", "gpu", g.UUID, "memory", memsize.Format(contextcost.DefaultBytes))
	}
	return contextcost.DefaultBytes, nil
}

var errNotMeasured = errors.New("not measured")

// stop ends the daemon of a GPU that is gone: nothing can compute there, and what its server has of the GPU would be in
// the way of its return.
func (d *daemons) stop(ctx context.Context, uuid string) error {
	if !d.keeper.Owns(uuid) {
		return nil
	}
	return d.keeper.Stop(ctx, uuid)
}

// release takes a GPU back that is shared in another mode now, when no task of mode mps has it any more.
func (d *daemons) release(ctx context.Context, uuid string) error {
	claims, _, err := d.node.ledger.List(ctx)
	if err != nil {
		return err
	}
	for _, c := range claims {
		if c.Mode == claim.ModeMPS && c.PhysicalGPU() == uuid && d.node.holds(c) {
			return &waitsError{"waits for claim " + c.ID + ", whose GPU is in mode mps until its task has ended"}
		}
	}
	err = d.keeper.Release(ctx, uuid)
	if busy := (*mps.BusyError)(nil); errors.As(err, &busy) {
		return &waitsError{"waits for processes that compute through the MPS control daemon, from when the GPU was in mode mps"}
	}
	return err
}

// down is why the daemon of a GPU cannot be had; empty if it can.
func (d *daemons) down(uuid string) string {
	d.mu.Lock()
	reason := d.waits[uuid]
	d.mu.Unlock()
	if status := d.keeper.Status(uuid); reason == "" && !status.Running {
		reason = "the MPS control daemon does not run: " + status.Reason
	}
	return reason
}

// leaving is an error while a GPU that is shared in another mode is still behind a daemon.
func (d *daemons) leaving(g *gpu) error {
	if g.mode == claim.ModeMPS || !d.keeper.Owns(g.UUID) {
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

// setLeaving says so on its devices.
func (d *daemons) setLeaving(g *gpu, group *ndevice.DeviceGroup) {
	if err := d.leaving(g); err != nil {
		setWaits(group, err.Error())
	}
}

// close stops watching the daemons. They live on.
func (d *daemons) close() {
	d.under.Wait()
	d.keeper.Close()
}
