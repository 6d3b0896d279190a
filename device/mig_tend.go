package device

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tranche-gpu/tranche/claim"
)

// restartWithin is how long the instance of a claim whose container has ended
// waits for the next one to be started. Nomad restarts a task in place with the
// claim that it has, by default 15 seconds later. A task that comes later than this
// gets an error, and with it a new reservation. An instance whose room is wanted
// does not wait.
const restartWithin = 10 * time.Minute

// demand is what is known of the GPUs whose instances are made on demand. Its
// zero value is ready.
type demand struct {
	mu sync.Mutex
	// turns has a token of each GPU while somebody changes its instances.
	turns map[string]chan struct{}
	rooms map[string]*room
}

// turn waits until nobody else changes a GPU's instances, and returns how to let
// others at them.
func (d *demand) turn(ctx context.Context, uuid string) (done func(), err error) {
	d.mu.Lock()
	if d.turns == nil {
		d.turns = make(map[string]chan struct{})
	}
	if d.turns[uuid] == nil {
		d.turns[uuid] = make(chan struct{}, 1)
	}
	turn := d.turns[uuid]
	d.mu.Unlock()
	select {
	case turn <- struct{}{}:
		return func() { <-turn }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("another reservation on the GPU %s is not done yet: %w", uuid, ctx.Err())
	}
}

// room is what was last found of a GPU.
func (d *demand) room(uuid string) *room {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.rooms[uuid]; r != nil {
		return r
	}
	return &room{unknown: "nobody has looked yet"}
}

// noRoom says why nothing could be found of a GPU. What was found before stays:
// if the GPU does not answer, that is a problem of the GPU's.
func (d *demand) noRoom(uuid string, reason error) {
	if d.room(uuid).unknown != "" {
		d.setRoom(uuid, &room{unknown: reason.Error()})
	}
}

func (d *demand) setRoom(uuid string, r *room) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.rooms == nil {
		d.rooms = make(map[string]*room)
	}
	d.rooms[uuid] = r
}

// tendAll sets the GPUs right whose instances are made on demand, and finds what
// they have room for.
func (n *node) tendAll(ctx context.Context) {
	for _, g := range n.inventory.list() {
		if !g.onDemand() || g.problem != "" {
			continue
		}
		err := n.tend(ctx, &g)
		if ctx.Err() != nil {
			return
		}
		if n.reported.changed("MIG instances of "+g.UUID, err) && err != nil {
			n.logger.Warn("the MIG instances of a GPU are not as they should be yet; the next look at it tries again",
				"gpu", g.UUID, "name", g.groupName(), "error", err)
		}
	}
}

func (n *node) tend(ctx context.Context, g *gpu) error {
	bounded, cancel := context.WithTimeout(ctx, n.nvmlTimeout)
	defer cancel()
	done, err := n.demand.turn(bounded, g.UUID)
	if err != nil {
		return err
	}
	defer done()
	return n.tidy(bounded, g)
}

// tidy takes away what nobody will use: claims of plugins that died while they
// made an instance, instances of no claim, dormant claims whose container did not
// come back, and those whose instance is gone. The caller has the GPU's turn.
func (n *node) tidy(ctx context.Context, g *gpu) error {
	s, err := n.look(ctx, g, nil)
	if err != nil {
		n.demand.noRoom(g.UUID, err)
		return err
	}
	if !s.enabled {
		n.wake() // MIG was turned off behind our back
		return nil
	}
	var errs []error
	for _, c := range s.dormant {
		errs = append(errs, n.forget(ctx, s, c))
	}
	for _, instance := range s.idle {
		if instance.claim != nil && !n.expired(instance.claim) {
			continue
		}
		if err := n.retire(ctx, g, instance); err != nil {
			s.stay = append(s.stay, instance.Instance)
			errs = append(errs, err)
		}
	}
	n.demand.setRoom(g.UUID, s.room(g.sizes))
	return errors.Join(errs...)
}

// expired tells whether the container of a dormant claim has not come back in
// time.
func (n *node) expired(c *claim.Claim) bool {
	since := n.ledger.Refreshed(c)
	if c.Released.IsZero() {
		since = since.Add(takenUpWithin)
	}
	return n.now().Sub(since) > restartWithin
}

// forget takes a claim out of the ledger that has no instance.
func (n *node) forget(ctx context.Context, s *standing, c *claim.Claim) error {
	switch {
	case c.Making():
		n.logger.Warn("taking back a claim whose MIG instance was never made", "claim", c.ID, "gpu", c.PhysicalGPU())
		return n.ledger.Cancel(ctx, c.ID)
	case slices.ContainsFunc(s.idle, func(i idleInstance) bool { return i.claim == c }), s.stays(c):
		return nil
	}
	n.logger.Warn("the MIG instance of a claim is gone, so no container can come back for it", "claim", c.ID,
		"gpu", c.PhysicalGPU(), "instance", c.GPU.UUID)
	return n.drop(ctx, c)
}

// stays tells whether an instance that somebody uses is where a dormant claim's
// was.
func (s *standing) stays(c *claim.Claim) bool {
	return slices.Contains(s.stay, placeOf(c))
}

// drop takes a claim out of the ledger that no container has.
func (n *node) drop(ctx context.Context, c *claim.Claim) error {
	if err := n.ledger.Drop(ctx, c.ID); err != nil && !errors.Is(err, claim.ErrUnknownClaim) {
		return fmt.Errorf("taking claim %s, which no container has, out of the ledger: %w", c.ID, err)
	}
	return nil
}

// retire destroys an instance that nobody uses. The claim on it goes first, so
// that no container gets it any more.
func (n *node) retire(ctx context.Context, g *gpu, instance idleInstance) error {
	if instance.claim != nil {
		if err := n.drop(ctx, instance.claim); err != nil {
			return err
		}
	}
	if err := n.partitioner.DestroyInstance(ctx, g.UUID, instance.GPUInstance); err != nil {
		return err
	}
	n.logger.Info("MIG instance destroyed", "gpu", g.UUID, "profile", instance.Profile, "slot", instance.Start,
		"uuid", instance.UUID)
	return nil
}
