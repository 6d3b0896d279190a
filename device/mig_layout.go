package device

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/mig"
)

// layOut cuts the GPUs into the instances that the configuration declares, makes
// those whole again that are shared in another mode, and says whether anything was
// changed. What somebody uses stays as it is; the log
// says what waits for what, and the next look at the GPUs tries again.
func (n *node) layOut(ctx context.Context) (changed bool) {
	for _, g := range n.inventory.list() {
		work := n.cut
		switch {
		case !g.answers:
			continue
		case n.leavesMIG(&g):
			work = n.leaveMIG
		case g.mode != claim.ModeMIG:
			continue
		}
		done, err := work(ctx, &g)
		changed = changed || done
		n.inventory.setWaits(g.UUID, err)
		if n.reported.changed("layout of "+g.UUID, err) && err != nil {
			n.logger.Warn("a GPU is not cut into instances yet as it is to be", "gpu", g.UUID, "name", g.groupName(),
				"mode", string(g.mode), "profiles", g.profiles, "reason", err)
		}
	}
	return changed
}

// cut makes a GPU have its instances.
func (n *node) cut(ctx context.Context, g *gpu) (changed bool, err error) {
	if !g.MIG.Capable {
		return false, errors.New("it has no MIG: share it in another mode")
	}
	if !g.MIG.Enabled {
		if model, known := mig.ModelOf(g.Name, g.MemoryBytes); known {
			err = g.checkInstances(model)
		}
		if err != nil {
			return false, err
		}
		return n.turnOn(ctx, g)
	}
	if g.onDemand() {
		return false, nil // its instances are made as they are reserved
	}
	profiles, err := n.partitioner.MIGProfiles(ctx, g.UUID)
	if err != nil {
		return false, err
	}
	wanted, err := mig.Named(profiles, g.profiles)
	if err != nil {
		return false, err
	}
	present, users, err := n.present(ctx, g)
	if err != nil {
		return false, err
	}
	change, ok := mig.Plan(present, wanted)
	if !ok {
		if len(users) == 0 {
			return false, errNoFit
		}
		return false, fmt.Errorf("it waits for %s, whose instances leave no room", strings.Join(users, ", "))
	}
	return n.apply(ctx, g, change)
}

// errNoFit says that no layout has instances of all the profiles.
var errNoFit = errors.New("mig.profiles do not fit on the GPU together: name fewer or smaller ones")

// apply destroys and makes instances.
func (n *node) apply(ctx context.Context, g *gpu, change mig.Change) (changed bool, err error) {
	for _, number := range change.Destroy {
		instance := g.MIG.Instances[number]
		if err := n.partitioner.DestroyInstance(ctx, g.UUID, instance.GPUInstance); err != nil {
			return changed, err
		}
		changed = true
		n.logger.Info("MIG instance destroyed", "gpu", g.UUID, "profile", instance.Profile, "slot", instance.Start, "uuid", instance.UUID)
	}
	for _, placed := range change.Create {
		made, err := n.partitioner.CreateInstance(ctx, g.UUID, placed.Profile, placed.Place)
		if err != nil {
			return changed, err
		}
		changed = true
		n.logger.Info("MIG instance made", "gpu", g.UUID, "profile", made.Profile, "slot", made.Start, "uuid", made.UUID)
	}
	return changed, nil
}

// turnOn turns MIG on, for which nobody may use the GPU.
func (n *node) turnOn(ctx context.Context, g *gpu) (changed bool, err error) {
	users, err := n.users(ctx, g.UUID)
	if err != nil {
		return false, err
	}
	if len(users) > 0 {
		return false, fmt.Errorf("it waits for %s to turn MIG on", strings.Join(users, ", "))
	}
	if err := n.markMIG(g.UUID); err != nil {
		return false, err
	}
	if err := n.partitioner.SetMIG(ctx, g.UUID, true); err != nil {
		return false, err
	}
	n.logger.Info("MIG turned on", "gpu", g.UUID)
	return true, nil
}

// present are the GPU's instances, and who uses those that are used.
func (n *node) present(ctx context.Context, g *gpu) (present []mig.Present, users []string, err error) {
	for _, instance := range g.MIG.Instances {
		var using []string
		if instance.UUID != "" {
			if using, err = n.users(ctx, instance.UUID); err != nil {
				return nil, nil, err
			}
		}
		users = append(users, using...)
		present = append(present, mig.Present{Instance: instance.Instance, Used: len(using) > 0})
	}
	return present, users, nil
}

// users are the claims on a GPU or an instance, and the processes that compute on
// it: containers that NVIDIA's runtime starts bind no claim.
func (n *node) users(ctx context.Context, uuid string) ([]string, error) {
	claims, _, err := n.ledger.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("find the claims on %s: %w", uuid, err)
	}
	var users []string
	for _, c := range claims {
		if (c.GPU.UUID == uuid || c.PhysicalGPU() == uuid) && n.holds(c) {
			users = append(users, "claim "+c.ID)
		}
	}
	processes, err := n.nvml.Processes(ctx, uuid)
	if err != nil {
		return nil, fmt.Errorf("list the processes on %s: %w", uuid, err)
	}
	for _, p := range processes {
		users = append(users, fmt.Sprintf("process %d", p.PID))
	}
	return users, nil
}

// takenUpWithin is how long a claim's container may take to show after its
// reservation, or after it was last said to be on its way: whoever starts it says
// so every minute, while its image is pulled, say.
const takenUpWithin = 10 * time.Minute

// holds tells whether a claim's container lives or may still come.
func (n *node) holds(c *claim.Claim) bool {
	if c.Container == nil {
		return n.now().Sub(n.ledger.Refreshed(c)) < takenUpWithin
	}
	return c.Released.IsZero() && claim.Alive(*c.Container)
}
