package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/share"
	"github.com/tranche-gpu/tranche/device/share/mps"
	"github.com/tranche-gpu/tranche/internal/changelog"
)

// recoverySettles is how long the driver may take to report which recovery an Xid error needs. That it needs none counts
// only after that.
const recoverySettles = 10 * time.Second

// healthMonitor finds out which GPUs are unhealthy although they answer, by their state and by the Xid errors that they
// report. All methods may be called at any time.
type healthMonitor struct {
	driver    *share.Driver
	inventory *inventory
	daemons   *mps.Daemons
	clock     *share.Clock
	logger    hclog.Logger
	wake      func()
	log       changelog.Log

	// deaf is whether events were missed at the last check, which the fingerprint loop makes.
	deaf bool

	mu sync.Mutex
	// xids are the last errors that made GPUs unhealthy, by UUID.
	xids map[string]xidError
}

type xidError struct {
	at   time.Time
	text string
}

// watch records the Xid errors that GPUs report, until the context ends.
func (m *healthMonitor) watch(ctx context.Context) {
	for event := range m.driver.Events(ctx) {
		m.record(event)
	}
}

// record logs an Xid error, and keeps it if it makes the GPU unhealthy. If NVML does not say which GPU it is, it may be any.
func (m *healthMonitor) record(event nvml.Event) {
	verdict := nvml.VerdictOn(event.Xid)
	uuids, text := []string{event.UUID}, fmt.Sprintf("Xid %d: %s", event.Xid, verdict.Meaning)
	if event.UUID == "" {
		uuids, text = m.physical(), text+" (the driver does not say on which GPU)"
	}
	log := m.logger.With("gpu", strings.Join(uuids, ", "), "xid", event.Xid, "meaning", verdict.Meaning)
	switch {
	case verdict.Unhealthy():
		log.Error("GPU reported an error that makes it unhealthy")
		for _, uuid := range uuids {
			m.setXid(uuid, xidError{m.clock.Now(), text})
		}
	case verdict.Kind == nvml.XidUnknown:
		log.Error("GPU reported an error")
	default:
		log.Warn("GPU reported an error of a program, or a notice")
	}
	m.wake()
}

// physical returns the UUIDs of the node's GPUs.
func (m *healthMonitor) physical() []string {
	var uuids []string
	for _, g := range m.inventory.list() {
		if g.Origin == nil {
			uuids = append(uuids, g.UUID)
		}
	}
	return uuids
}

// checkEvents logs when Xid errors are missed, and when they are received again.
func (m *healthMonitor) checkEvents() {
	err := m.driver.EventsError()
	changed := m.log.Changed("events", err)
	switch {
	case err != nil && changed:
		m.logger.Error("cannot receive the Xid errors of GPUs; it is retried", "error", err)
	case err == nil && m.deaf:
		m.logger.Info("the Xid errors of GPUs are received again")
	}
	m.deaf = err != nil
}

func (m *healthMonitor) setXid(uuid string, x xidError) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.xids == nil {
		m.xids = make(map[string]xidError)
	}
	m.xids[uuid] = x
}

func (m *healthMonitor) clearXid(uuid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.xids, uuid)
}

func (m *healthMonitor) xid(uuid string) (xidError, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	x, ok := m.xids[uuid]
	return x, ok
}

// conditions queries the state of GPUs, and returns why those that are unhealthy are.
func (m *healthMonitor) conditions(ctx context.Context, gpus []nvml.GPU) map[string]string {
	conditions := make(map[string]string)
	for _, g := range gpus {
		health, err := m.driver.Health(ctx, g.UUID)
		if m.log.Changed("health of "+g.UUID, err) && err != nil {
			m.logger.Warn("cannot query the health of a GPU", "gpu", g.UUID, "error", err)
		}
		if err != nil {
			health = &nvml.Health{}
		}
		m.warn(g, health)
		if condition := cmp.Or(m.condition(g.UUID, health), m.computeModeProblem(g, health.ComputeMode)); condition != "" {
			conditions[g.UUID] = condition
		}
	}
	return conditions
}

// forgetAbsent removes the errors of GPUs that did not answer: they are reset when they come back. err is the error of the
// driver as a whole.
func (m *healthMonitor) forgetAbsent(found *nvml.Node, err error) {
	noDriver := (*nvml.NoDriverError)(nil)
	if err != nil && !errors.As(err, &noDriver) {
		return // the driver may just be slow
	}
	answered := make(map[string]bool)
	if err == nil {
		for _, g := range found.GPUs {
			answered[g.UUID] = true
		}
	}
	for _, g := range m.inventory.list() {
		if !answered[g.UUID] {
			m.clearXid(g.UUID)
		}
	}
}

// warn logs what an operator should know of a GPU that works.
func (m *healthMonitor) warn(g nvml.GPU, health *nvml.Health) {
	var err error
	if warnings := health.Warnings(); len(warnings) > 0 {
		err = fmt.Errorf("%s", strings.Join(warnings, "; "))
	}
	if m.log.Changed("warnings of "+g.UUID, err) && err != nil {
		m.logger.Warn("a GPU needs attention", "gpu", g.UUID, "name", g.Name, "what", err)
	}
}

// computeModeProblem returns why a GPU's tasks cannot compute in its compute mode; empty if they can. An MPS control daemon has
// one of its own.
func (m *healthMonitor) computeModeProblem(g nvml.GPU, mode *nvml.ComputeMode) string {
	policy := m.inventory.settings.sharing.of(g)
	if mode == nil || *mode == nvml.ComputeDefault || policy.Mode == claim.ModeMPS || m.daemons.Manager.Owns(g.UUID) {
		return ""
	}
	cannot := "no program can compute on it"
	if *mode != nvml.ComputeProhibited {
		if !policy.Shared() {
			return ""
		}
		cannot = "only one program at a time can compute on it"
	}
	return fmt.Sprintf("its compute mode is %s, so that %s: nvidia-smi -i %d -c DEFAULT", mode, cannot, g.Index)
}

// condition returns why a GPU is unhealthy; empty if it is not. Newer drivers report when it has recovered; with older
// ones, a GPU that was absent and came back is taken to have been reset.
func (m *healthMonitor) condition(uuid string, health *nvml.Health) string {
	x, failed := m.xid(uuid)
	if problem := health.Problem(); problem != "" {
		if failed {
			return x.text + "; " + problem
		}
		return problem
	}
	switch {
	case !failed:
		return ""
	case health.Recovery != nil && m.clock.Now().Sub(x.at) > recoverySettles:
		m.clearXid(uuid)
		return ""
	case health.Recovery == nil:
		return x.text + "; reset the GPU or restart the node, and then the Nomad agent, since this driver does not say " +
			"when a GPU has recovered"
	}
	return x.text
}
