package governor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/driverlimit"
	"github.com/tranche-gpu/tranche/claim/health"
	"github.com/tranche-gpu/tranche/claim/runs"
	"github.com/tranche-gpu/tranche/enforcement"
	"github.com/tranche-gpu/tranche/internal/changelog"
)

// holds is how often the limits that the driver enforces are looked at.
const holds = time.Second

// enforcer has the GPU driver hold containers to their limits: it grants the requests of hooks, sets limits again that do not
// stand, and publishes what the containers use.
type enforcer struct {
	driver enforcement.Driver
	ledger *claim.Ledger
	runDir string
	logger hclog.Logger
	// published is what was published last; nil before the first time.
	published map[string]driverlimit.Claim
	log       changelog.Log
}

// run works until the context ends.
func (e *enforcer) run(ctx context.Context) {
	if e.driver == nil {
		return
	}
	served := make(chan struct{})
	go func() { defer close(served); e.serve(ctx) }()
	ticker := time.NewTicker(holds)
	defer ticker.Stop()
	for {
		e.complain("all", e.look(ctx))
		select {
		case <-ctx.Done():
			<-served
			return
		case <-ticker.C:
		}
	}
}

// serve answers hooks.
func (e *enforcer) serve(ctx context.Context) {
	for ctx.Err() == nil {
		if err := enforcement.Serve(ctx, e.driver, e.ledger, e.runDir); err != nil {
			e.logger.Error("hooks cannot ask for limits, so they set them themselves", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(holds):
		}
	}
}

// look holds all containers to their limits.
func (e *enforcer) look(ctx context.Context) error {
	claims, err := e.claims(ctx)
	if err != nil {
		return err
	}
	if len(claims) == 0 && len(e.published) == 0 && e.published != nil {
		return nil
	}
	published, err := health.Read(e.runDir)
	e.complain("uncounted memory", err)
	found := make(map[string]driverlimit.Claim)
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(claims)) {
		held, err := e.hold(ctx, claims[key], &published)
		maps.Copy(found, held)
		errs = append(errs, err)
	}
	e.complain("containers", errors.Join(errs...))
	if err := driverlimit.Write(e.runDir, driverlimit.Report{Written: time.Now().UTC(), Claims: found}); err != nil {
		return err
	}
	e.published = found
	return nil
}

// claims returns the claims of each container that lives and has one whose limit the driver enforces.
func (e *enforcer) claims(ctx context.Context) (map[string][]*claim.Claim, error) {
	all, _, err := e.ledger.Recent(ctx)
	if err != nil {
		return nil, err
	}
	for _, dir := range runs.RegionDirs(e.runDir) {
		if c, err := runs.ReadRecord(dir); err == nil {
			all = append(all, c)
		}
	}
	containers := make(map[string][]*claim.Claim)
	for _, c := range all {
		if c.Container != nil && c.Released.IsZero() && claim.Alive(*c.Container) {
			containers[c.ContainerKey()] = append(containers[c.ContainerKey()], c)
		}
	}
	maps.DeleteFunc(containers, func(_ string, of []*claim.Claim) bool { return !slices.ContainsFunc(of, (*claim.Claim).ByDriver) })
	return containers, nil
}

// hold holds one container to its limits, and returns what is to be published of its claims, also with an error.
func (e *enforcer) hold(ctx context.Context, claims []*claim.Claim, published *health.Report) (map[string]driverlimit.Claim, error) {
	charged := make(map[string]uint64)
	for _, c := range claims {
		condition, _ := published.Of(c)
		charged[c.ID] = condition.ChargedBytes
	}
	uses, err := enforcement.Hold(ctx, e.driver, claims[0].Container.InitPID, claims, charged)
	if err != nil && !claim.Alive(*claims[0].Container) {
		return nil, nil // it has ended meanwhile
	}
	found := make(map[string]driverlimit.Claim)
	left := make(map[string]uint64)
	for uuid, use := range uses {
		left[uuid] = use.UsedBytes
		if use.Restored {
			e.logger.Info("a container's limit was set anew", "container", claims[0].Container.ID, "gpu", uuid, "limit_bytes",
				use.LimitBytes)
		}
	}
	for i, c := range claims {
		if !c.ByDriver() {
			continue
		}
		one := driverlimit.Claim{Container: c.ContainerKey(), LimitBytes: c.LimitBytes}
		if _, known := uses[c.GPU.UUID]; known {
			one.UsedBytes = takePart(left, c, lastOn(claims[i+1:], c.GPU.UUID))
		} else if err != nil {
			one.Problem = err.Error()
		}
		if before, ok := e.published[c.ID]; ok && before.Container == one.Container {
			one.PeakBytes = before.PeakBytes
		}
		one.PeakBytes = max(one.PeakBytes, one.UsedBytes)
		found[c.ID] = one
	}
	if err != nil {
		err = fmt.Errorf("hold container %s to its limits: %w", claims[0].Container.ID, err)
	}
	return found, err
}

// takePart takes a claim's part from what its container uses of the GPU: as much as its limit, and the last claim there the rest.
func takePart(left map[string]uint64, c *claim.Claim, last bool) uint64 {
	bytes := left[c.GPU.UUID]
	if !last {
		bytes = min(bytes, c.LimitBytes)
	}
	left[c.GPU.UUID] -= bytes
	return bytes
}

// lastOn reports whether none of the claims that follow is on a GPU.
func lastOn(following []*claim.Claim, uuid string) bool {
	return !slices.ContainsFunc(following, func(c *claim.Claim) bool { return c.GPU.UUID == uuid && c.ByDriver() })
}

// complain logs the outcome of a part of the work if it is another error than the last.
func (e *enforcer) complain(part string, err error) {
	if e.log.Changed(part, err) && err != nil {
		e.logger.Error("cannot hold containers to the limits that the GPU driver enforces", "error", err)
	}
}
