package device

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/tranche-gpu/tranche/device/nvml"
)

// xidSettles is how long the driver has to say which recovery an error calls
// for. Only what it says later counts as the all-clear.
const xidSettles = 10 * time.Second

// xids are the errors that made GPUs unfit.
type xids struct {
	mu     sync.Mutex
	latest map[string]xidMark
}

type xidMark struct {
	at   time.Time
	text string
}

// watchEvents takes in the errors that GPUs report, until the context ends.
func (n *node) watchEvents(ctx context.Context) {
	for event := range n.nvml.Events(ctx) {
		n.takeIn(event)
	}
}

// takeIn logs an error, and marks the GPU if it is not fit for work any more.
func (n *node) takeIn(event nvml.Event) {
	verdict := nvml.VerdictOn(event.Xid)
	log := n.logger.With("gpu", event.UUID, "xid", event.Xid, "meaning", verdict.Meaning)
	switch {
	case verdict.Unhealthy():
		log.Error("the GPU reports an error after which it is not fit for work")
		n.xids.mark(event.UUID, xidMark{n.now(), fmt.Sprintf("Xid %d: %s", event.Xid, verdict.Meaning)})
	case verdict.Kind == nvml.XidUnknown:
		log.Error("the GPU reports an error")
	default:
		log.Warn("the GPU reports an error of a program, or a notice")
	}
	n.wake()
}

func (x *xids) mark(uuid string, mark xidMark) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.latest == nil {
		x.latest = make(map[string]xidMark)
	}
	x.latest[uuid] = mark
}

func (x *xids) clear(uuid string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.latest, uuid)
}

func (x *xids) of(uuid string) (xidMark, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	mark, ok := x.latest[uuid]
	return mark, ok
}

// conditions asks the GPUs in what state they are, and returns what makes each
// of them unfit for work.
func (n *node) conditions(ctx context.Context, gpus []nvml.GPU) map[string]string {
	conditions := make(map[string]string)
	for _, g := range gpus {
		health, err := n.nvml.Health(ctx, g.UUID)
		if n.reported.changed("health of "+g.UUID, err) && err != nil {
			n.logger.Warn("cannot tell how a GPU is", "gpu", g.UUID, "error", err)
		}
		if err != nil {
			health = &nvml.Health{}
		}
		n.warn(g, health)
		if condition := n.condition(g.UUID, health); condition != "" {
			conditions[g.UUID] = condition
		}
	}
	return conditions
}

// forgetXids lets go of errors of GPUs that are away: they come back reset.
func (n *node) forgetXids(found *nvml.Node, err error) {
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
	for _, g := range n.inventory.list() {
		if !answered[g.UUID] {
			n.xids.clear(g.UUID)
		}
	}
}

// warn logs what an operator should know of a GPU that works.
func (n *node) warn(g nvml.GPU, health *nvml.Health) {
	var err error
	if warnings := health.Warnings(); len(warnings) > 0 {
		err = fmt.Errorf("%s", strings.Join(warnings, "; "))
	}
	if n.reported.changed("warnings of "+g.UUID, err) && err != nil {
		n.logger.Warn("a GPU needs attention", "gpu", g.UUID, "name", g.Name, "what", err)
	}
}

// condition is what makes a GPU unfit; empty if nothing does. Newer drivers say
// themselves when it has recovered; of older ones, a GPU that was away and came
// back is taken to have been reset.
func (n *node) condition(uuid string, health *nvml.Health) string {
	if unfit := health.Problem(); unfit != "" {
		if mark, marked := n.xids.of(uuid); marked {
			return mark.text + "; " + unfit
		}
		return unfit
	}
	mark, marked := n.xids.of(uuid)
	switch {
	case !marked:
		return ""
	case health.Recovery != nil && n.now().Sub(mark.at) > xidSettles:
		n.xids.clear(uuid)
		return ""
	case health.Recovery == nil:
		return mark.text + "; reset the GPU or restart the node, and then the Nomad agent, since this driver does not say " +
			"when a GPU has recovered"
	}
	return mark.text
}
