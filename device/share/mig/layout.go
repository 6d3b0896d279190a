package mig

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/mig"
	"github.com/tranche-gpu/tranche/device/share"
	"github.com/tranche-gpu/tranche/internal/changelog"
)

// Layout turns MIG on and creates the instances that the configuration declares, and turns MIG off on GPUs that have left
// mode mig.
type Layout struct {
	// StateDir has a file for each GPU on which the plugin has turned MIG on.
	StateDir string
	Driver   *share.Driver
	Ledger   *share.Ledger
	Logger   hclog.Logger

	log changelog.Log
}

// Apply changes the GPUs as they are configured, and reports whether anything was changed. What is in use stays as it is.
// What a GPU waits for is logged and given to setWaits; the next call tries again.
func (l *Layout) Apply(ctx context.Context, gpus []share.GPU, setWaits func(uuid string, reason error)) (changed bool) {
	for _, g := range gpus {
		work := l.partition
		switch {
		case !g.Answers:
			continue
		case l.disables(&g):
			work = l.disable
		case g.Mode != claim.ModeMIG:
			continue
		}
		done, err := work(ctx, &g)
		changed = changed || done
		setWaits(g.UUID, err)
		if l.log.Changed(g.UUID, err) && err != nil {
			l.Logger.Warn("the MIG instances of a GPU are not as configured yet", "gpu", g.UUID, "name", g.GroupName(),
				"mode", string(g.Mode), "profiles", g.Profiles, "reason", err)
		}
	}
	return changed
}

// partition turns MIG on, or creates the declared instances of a GPU on which it is on. It reports whether it has changed
// anything.
func (l *Layout) partition(ctx context.Context, g *share.GPU) (changed bool, err error) {
	if !g.MIG.Capable {
		return false, errors.New("it has no MIG: share it in another mode")
	}
	if !g.MIG.Enabled {
		if model, known := mig.ModelOf(g.Name, g.MemoryBytes); known {
			err = checkInstances(&g.Policy, model)
		}
		if err != nil {
			return false, err
		}
		return l.enable(ctx, g)
	}
	if g.OnDemand() {
		return false, nil
	}
	profiles, err := l.Driver.Partitioner.MIGProfiles(ctx, g.UUID)
	if err != nil {
		return false, err
	}
	wanted, err := mig.Named(profiles, g.Profiles)
	if err != nil {
		return false, err
	}
	present, users, err := l.present(ctx, g)
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
	return l.apply(ctx, g, change)
}

// errNoFit says that no layout has instances of all declared profiles.
var errNoFit = errors.New("mig.profiles do not fit on the GPU together: name fewer or smaller ones")

// apply destroys and creates instances.
func (l *Layout) apply(ctx context.Context, g *share.GPU, change mig.Change) (changed bool, err error) {
	for _, number := range change.Destroy {
		instance := g.MIG.Instances[number]
		if err := l.Driver.Partitioner.DestroyInstance(ctx, g.UUID, instance.GPUInstance); err != nil {
			return changed, err
		}
		changed = true
		l.Logger.Info("MIG instance destroyed", "gpu", g.UUID, "profile", instance.Profile, "slot", instance.Start,
			"uuid", instance.UUID)
	}
	for _, placed := range change.Create {
		created, err := l.Driver.Partitioner.CreateInstance(ctx, g.UUID, placed.Profile, placed.Place)
		if err != nil {
			return changed, err
		}
		changed = true
		l.Logger.Info("MIG instance created", "gpu", g.UUID, "profile", created.Profile, "slot", created.Start,
			"uuid", created.UUID)
	}
	return changed, nil
}

// enable turns MIG on, for which nothing may use the GPU.
func (l *Layout) enable(ctx context.Context, g *share.GPU) (changed bool, err error) {
	users, err := l.users(ctx, g.UUID)
	if err != nil {
		return false, err
	}
	if len(users) > 0 {
		return false, fmt.Errorf("it waits for %s to turn MIG on", strings.Join(users, ", "))
	}
	if err := l.mark(g.UUID); err != nil {
		return false, err
	}
	if err := l.Driver.Partitioner.SetMIG(ctx, g.UUID, true); err != nil {
		return false, err
	}
	l.Logger.Info("MIG turned on", "gpu", g.UUID)
	return true, nil
}

// present returns the GPU's instances, and the users of those that are used.
func (l *Layout) present(ctx context.Context, g *share.GPU) (present []mig.Present, users []string, err error) {
	for _, instance := range g.MIG.Instances {
		var using []string
		if instance.UUID != "" {
			if using, err = l.users(ctx, instance.UUID); err != nil {
				return nil, nil, err
			}
		}
		users = append(users, using...)
		present = append(present, mig.Present{Instance: instance.Instance, Used: len(using) > 0})
	}
	return present, users, nil
}

// users returns the claims on a GPU or an instance, and the processes that compute on it: containers that NVIDIA's runtime
// starts bind no claim.
func (l *Layout) users(ctx context.Context, uuid string) ([]string, error) {
	claims, _, err := l.Ledger.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the claims on %s: %w", uuid, err)
	}
	var users []string
	for _, c := range claims {
		if (c.GPU.UUID == uuid || c.PhysicalGPU() == uuid) && l.Ledger.InUse(c) {
			users = append(users, "claim "+c.ID)
		}
	}
	processes, err := l.Driver.Processes(ctx, uuid)
	if err != nil {
		return nil, fmt.Errorf("list the processes on %s: %w", uuid, err)
	}
	for _, p := range processes {
		users = append(users, fmt.Sprintf("process %d", p.PID))
	}
	return users, nil
}

// disable turns MIG off on a GPU that has left mode mig, when nothing uses it any more.
func (l *Layout) disable(ctx context.Context, g *share.GPU) (changed bool, err error) {
	if !g.MIG.Enabled {
		return false, l.unmark(g.UUID)
	}
	users, err := l.users(ctx, g.UUID)
	if err != nil {
		return false, err
	}
	_, onInstances, err := l.present(ctx, g)
	if err != nil {
		return false, err
	}
	users = slices.Compact(slices.Sorted(slices.Values(append(users, onInstances...))))
	if len(users) > 0 {
		return false, fmt.Errorf("it waits for %s to turn MIG off", strings.Join(users, ", "))
	}
	for _, instance := range g.MIG.Instances {
		if err := l.Driver.Partitioner.DestroyInstance(ctx, g.UUID, instance.GPUInstance); err != nil {
			return changed, err
		}
		changed = true
	}
	if err := l.Driver.Partitioner.SetMIG(ctx, g.UUID, false); err != nil {
		return changed, err
	}
	l.Logger.Info("MIG turned off", "gpu", g.UUID, "mode", string(g.Mode))
	return true, l.unmark(g.UUID)
}
