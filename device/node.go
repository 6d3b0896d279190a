package device

import (
	"context"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/contextcost"
	"github.com/tranche-gpu/tranche/device/mps"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/owners"
	"github.com/tranche-gpu/tranche/device/share"
	"github.com/tranche-gpu/tranche/device/share/exclusive"
	sharemig "github.com/tranche-gpu/tranche/device/share/mig"
	sharemps "github.com/tranche-gpu/tranche/device/share/mps"
	"github.com/tranche-gpu/tranche/device/share/slice"
	"github.com/tranche-gpu/tranche/device/share/timeslice"
)

// nvmlTimeout bounds one query of the driver. The first one on an idle node takes seconds per GPU, because it wakes them.
const nvmlTimeout = 30 * time.Second

// node has the parts of which one configuration of the plugin consists. Each keeps its own state; the fingerprint loop
// calls them in order.
type node struct {
	*settings
	logger hclog.Logger
	clock  *share.Clock
	driver *share.Driver
	ledger *share.Ledger
	costs  share.ContextCosts
	// changed wakes the fingerprint loop.
	changed chan struct{}

	modes    map[claim.Mode]share.Mode
	daemons  *sharemps.Daemons
	layout   *sharemig.Layout
	onDemand *sharemig.OnDemand

	check        *configCheck
	inventory    *inventory
	health       *healthMonitor
	scanner      *scanner
	reservations *reservations
	published    *publishedState
	unmanaged    *unmanagedUse
	external     *externalUse
	stats        *statistics
	owners       *owners.Owners
	governed     *governed
}

// newNode returns a node that has started nothing.
func newNode(s *settings, library nvml.Interface, logger hclog.Logger) (*node, error) {
	ledger, err := claim.Open(claim.Options{StateDir: s.stateDir, RunDir: s.runDir, Logger: logger.Named("ledger")})
	if err != nil {
		return nil, err
	}
	clock := &share.Clock{Now: time.Now, After: time.After}
	n := &node{
		settings: s, logger: logger, clock: clock,
		driver:  &share.Driver{Interface: library, Timeout: nvmlTimeout},
		ledger:  &share.Ledger{Ledger: ledger, Clock: clock, Logger: logger},
		costs:   newCosts(s, logger),
		changed: make(chan struct{}, 1),
	}
	n.driver.Partitioner, _ = library.(nvml.Partitioner)
	n.addModes()
	n.addParts()
	return n, nil
}

// newCosts returns the costs of contexts that the operator has configured, or a meter.
func newCosts(s *settings, logger hclog.Logger) share.ContextCosts {
	if s.contextBytes > 0 {
		return fixedCost(s.contextBytes)
	}
	return contextcost.NewMeter(contextcost.Options{
		DriverRoot: s.driverRoot,
		CacheFile:  filepath.Join(s.stateDir, "context-cost.json"),
		Logger:     logger,
	})
}

// fixedCost is the memory of a context in bytes, as the operator has configured it.
type fixedCost uint64

func (f fixedCost) Cost(context.Context, contextcost.GPU) (uint64, error) { return uint64(f), nil }
func (f fixedCost) Known(contextcost.GPU) (uint64, bool)                  { return uint64(f), true }

// addModes makes the modes of sharing, and what they do to GPUs.
func (n *node) addModes() {
	n.daemons = sharemps.NewDaemons(sharemps.Options{
		DriverRoot: n.driverRoot, RunDir: n.runDir, Ignored: n.ignored, Driver: n.driver, Ledger: n.ledger, Costs: n.costs,
		Manager: mps.New(mps.Options{
			DriverRoot: n.driverRoot, RunDir: n.runDir, GPUs: n.driver, Logger: n.logger.Named("mps"),
		}),
		Logger: n.logger, Wake: n.wake,
	})
	n.layout = &sharemig.Layout{StateDir: n.stateDir, Driver: n.driver, Ledger: n.ledger, Logger: n.logger}
	n.onDemand = &sharemig.OnDemand{
		Driver: n.driver, Ledger: n.ledger, Ignored: n.ignored, MaxSlices: n.maxSlices, Logger: n.logger, Wake: n.wake,
	}
	n.modes = map[claim.Mode]share.Mode{
		claim.ModeSlice:     &slice.Mode{Ledger: n.ledger, Costs: n.costs, MaxSlices: n.maxSlices},
		claim.ModeExclusive: &exclusive.Mode{Ledger: n.ledger, Ignored: n.ignored},
		claim.ModeTimeslice: &timeslice.Mode{Ledger: n.ledger},
		claim.ModeMPS:       &sharemps.Mode{Ledger: n.ledger, Daemons: n.daemons, MaxSlices: n.maxSlices},
		claim.ModeMIG:       &sharemig.Mode{Driver: n.driver, Ledger: n.ledger, Ignored: n.ignored, OnDemand: n.onDemand},
	}
}

// addParts makes the parts of the plugin itself.
func (n *node) addParts() {
	n.check = &configCheck{settings: n.settings, driver: n.driver, modes: n.modes, layout: n.layout, logger: n.logger}
	n.inventory = newInventory(n.settings, n.modes, n.logger)
	n.health = &healthMonitor{
		driver: n.driver, inventory: n.inventory, daemons: n.daemons, clock: n.clock, logger: n.logger, wake: n.wake,
	}
	n.scanner = &scanner{
		driver: n.driver, check: n.check, health: n.health, inventory: n.inventory, onDemand: n.onDemand, costs: n.costs,
		prober: &prober{sharing: &n.sharing, driver: n.driver, logger: n.logger}, wake: n.wake,
	}
	n.reservations = &reservations{scanner: n.scanner, inventory: n.inventory, modes: n.modes, daemons: n.daemons}
	n.owners = owners.New(n.nomad, n.ledger, n.logger)
	n.published = &publishedState{runDir: n.runDir, driver: n.driver, bypass: n.bypass, clock: n.clock, logger: n.logger}
	n.unmanaged = &unmanagedUse{
		driver: n.driver, ledger: n.ledger, clock: n.clock, inventory: n.inventory, daemons: n.daemons, logger: n.logger,
		uncounted: uncountedMemory{ledger: n.ledger, clock: n.clock, logger: n.logger, charges: n.uncounted != uncountedObserved,
			ends: n.uncounted == uncountedEnds},
	}
	n.external = &externalUse{
		settings: n.settings, driver: n.driver, ledger: n.ledger, inventory: n.inventory, logger: n.logger,
	}
	n.stats = &statistics{
		driver: n.driver, ledger: n.ledger, inventory: n.inventory, modes: n.modes, logger: n.logger, wake: n.wake,
		runDir: n.runDir,
	}
	n.governed = newGoverned(n)
}

// wake has the fingerprint loop look at the GPUs now.
func (n *node) wake() {
	select {
	case n.changed <- struct{}{}:
	default: // it wakes up anyway
	}
}
