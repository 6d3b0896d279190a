package device

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/claim"
	placement "github.com/tranche-gpu/tranche/device/mig"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/share"
	"github.com/tranche-gpu/tranche/device/share/mig"
	"github.com/tranche-gpu/tranche/internal/changelog"
	"github.com/tranche-gpu/tranche/internal/size"
)

// inventory is what is known of the node's GPUs. A GPU that was found once stays in it, so that Nomad sees it as unhealthy
// when it is gone. All methods may be called at any time.
type inventory struct {
	settings *settings
	modes    map[claim.Mode]share.Mode
	logger   hclog.Logger

	mu   sync.Mutex
	gpus map[string]*share.GPU
	// changed is whether the current update has found anything new.
	changed bool
	log     changelog.Log
}

func newInventory(s *settings, modes map[claim.Mode]share.Mode, logger hclog.Logger) *inventory {
	return &inventory{settings: s, modes: modes, logger: logger, gpus: make(map[string]*share.GPU)}
}

// update records what NVML returned, and the conditions that make GPUs unhealthy although they answer. It returns the GPUs
// that are new or usable again, and whether anything has changed that concerns Nomad.
//
// noDriverLimits is why the driver cannot enforce limits on a GPU that is to be tried, by UUID.
func (inv *inventory) update(
	node *nvml.Node, conditions, noDriverLimits map[string]string, err error,
) (usable []share.GPU, changed bool) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	inv.changed = false
	if err != nil {
		inv.driverFailed(err)
		return nil, inv.changed
	}
	if inv.log.Changed("driver", nil) {
		inv.logger.Info("the GPU driver answers", "driver_version", node.DriverVersion, "gpus", len(node.GPUs))
	}
	answered := make(map[string]bool)
	for _, found := range node.GPUs {
		if inv.settings.ignored[found.UUID] {
			continue
		}
		for _, g := range inv.answered(node, found, conditions[found.UUID], noDriverLimits[found.UUID]) {
			answered[g.UUID] = true
			if g.usable {
				usable = append(usable, *g.GPU)
			}
		}
	}
	lost := 0
	for uuid, g := range inv.gpus {
		if !answered[uuid] && g.Origin == nil {
			inv.lost(g, node.Failed)
			lost++
		}
	}
	for uuid, g := range inv.gpus {
		if !answered[uuid] && g.Origin != nil {
			inv.lostInstance(g)
		}
	}
	// GPUs that do not answer are more likely the ones that are missing than new ones.
	if len(node.Failed) > lost {
		inv.logFailed(node.Failed)
	}
	return usable, inv.changed
}

// driverFailed records that no GPU answers.
func (inv *inventory) driverFailed(err error) {
	var noDriver *nvml.NoDriverError
	for _, g := range inv.gpus {
		g.Answers, g.Gone = false, errors.As(err, &noDriver)
		inv.setProblem(g, "the GPU driver does not answer: "+err.Error())
	}
	if !inv.log.Changed("driver", err) {
		return
	}
	if errors.As(err, &noDriver) {
		inv.logger.Warn("no GPU driver, so this node offers no GPUs until there is one",
			"driver_root", inv.settings.driverRoot, "retry_every", inv.settings.fingerprintPeriod.String(), "error", err)
		return
	}
	inv.logger.Error("the GPU driver does not answer", "driver_root", inv.settings.driverRoot,
		"retry_every", inv.settings.fingerprintPeriod.String(), "error", err)
}

// answering is a GPU that answered, and whether it is new or usable again.
type answering struct {
	*share.GPU
	usable bool
}

// answered records a GPU that answered, and those of its MIG instances that are shared like GPUs.
func (inv *inventory) answered(node *nvml.Node, found nvml.GPU, condition, noDriverLimits string) []answering {
	add := func(g share.GPU) answering {
		g.Answers, g.DriverVersion, g.CUDAVersion, g.Condition = true, node.DriverVersion, node.CUDAVersion, condition
		return inv.add(g)
	}
	physical := add(share.GPU{GPU: found, Policy: inv.settings.sharing.of(found), NoDriverLimits: noDriverLimits})
	all := []answering{physical}
	for _, instance := range mig.Shared(physical.GPU, inv.settings.ignored) {
		all = append(all, add(share.GPU{GPU: physical.Instance(instance), Policy: *physical.Instances}))
	}
	return all
}

// add records a GPU as it was found now. What was fixed when it was first found stays, unless it is another: the driver gives a
// MIG instance the UUID of an earlier one.
func (inv *inventory) add(g share.GPU) answering {
	known := inv.gpus[g.UUID]
	if known != nil && (g.Origin == nil || known.Name == g.Name) {
		g.Index, g.Traits = known.Index, known.Traits
		g.Policy, g.SliceCount, g.Sizes = known.Policy, known.SliceCount, known.Sizes
		g.Waits, g.Problem = known.Waits, known.Problem
		inv.changed = inv.changed || g.NoDriverLimits != known.NoDriverLimits
		*known = g
		inv.updateProblem(known)
		return answering{known, g.Problem != "" && known.Problem == ""}
	}
	if g.Origin == nil {
		g.Index = inv.freeIndex(g.Index)
	}
	if g.Sliced() {
		g.SliceCount = int(g.UsableBytes() / g.SliceBytes)
	}
	inv.gpus[g.UUID] = &g
	inv.changed = true
	inv.logger.Info("GPU found", "gpu", g.UUID, "name", g.GroupName(), "memory", size.Format(g.MemoryBytes),
		"mode", string(g.Mode), "slices", g.SliceCount)
	inv.updateProblem(&g)
	return answering{&g, g.Problem == ""}
}

// freeIndex returns the index of a new GPU. NVML renumbers the others when one falls off the bus; here a GPU keeps its
// index as long as the plugin runs, because the index is part of its group's name.
func (inv *inventory) freeIndex(index int) int {
	used := make(map[int]bool)
	for _, g := range inv.gpus {
		used[g.Index] = true
	}
	if !used[index] {
		return index
	}
	for index = 0; used[index]; index++ {
	}
	return index
}

// migProblem returns why a GPU on which MIG is on cannot be in its mode; empty if it can.
func migProblem(g *share.GPU) string {
	switch {
	case !g.MIG.Enabled || g.Mode == claim.ModeMIG:
		return ""
	case g.Waits != "":
		return "MIG is still on: " + g.Waits
	case g.Mode == claim.ModeExclusive:
		return "" // the instances are offered
	}
	return fmt.Sprintf("MIG is on, so that nothing can use the GPU as a whole: turn it off (nvidia-smi -i %d -mig 0), or "+
		"share the GPU in mode %q", g.Index, claim.ModeMIG)
}

// updateProblem finds out whether a GPU that answers can be used.
func (inv *inventory) updateProblem(g *share.GPU) {
	if !g.Answers {
		return
	}
	problem := cmp.Or(g.Condition, migProblem(g))
	if problem == "" {
		problem = inv.modes[g.Mode].Problem(g)
	}
	if problem == "" && g.Enforcement == claim.EnforcementDriver && g.NoDriverLimits != "" {
		problem = fmt.Sprintf("enforcement = %q, but the driver cannot limit memory on this GPU: %s; set %q or %q", g.Enforcement,
			g.NoDriverLimits, claim.EnforcementAuto, claim.EnforcementLibrary)
	}
	if err := inv.settings.checkContext(g.GPU, g.Policy); problem == "" && err != nil {
		problem = err.Error()
	}
	inv.setProblem(g, problem)
}

func (inv *inventory) setProblem(g *share.GPU, problem string) {
	if g.Problem == problem {
		return
	}
	g.Problem = problem
	inv.changed = true
	log := inv.logger.With("gpu", g.UUID, "name", g.GroupName())
	if problem == "" {
		log.Info("GPU is usable again")
	} else {
		log.Error("GPU is not usable", "reason", problem)
	}
}

// lost records that a known GPU did not answer. The first reason stays: when a new session begins, NVML no longer knows
// which GPU it is that does not answer.
func (inv *inventory) lost(g *share.GPU, failed []nvml.Failure) {
	g.Answers, g.Gone = false, true
	for _, f := range failed {
		if f.UUID == g.UUID {
			inv.setProblem(g, "the GPU does not answer: "+f.Err.Error())
			return
		}
	}
	if g.Problem == "" {
		inv.setProblem(g, "the driver no longer lists the GPU: it fell off the bus or was taken out")
	}
}

// lostInstance records that a MIG instance was not listed. If its GPU answers it is gone, and its GPU has a device that says so.
func (inv *inventory) lostInstance(g *share.GPU) {
	physical := inv.gpus[g.Origin.GPUUUID]
	if physical.Answers {
		inv.logger.Warn("a MIG instance is gone", "gpu", physical.UUID, "name", g.GroupName(), "instance", g.UUID)
		delete(inv.gpus, g.UUID)
		inv.changed = true
		return
	}
	g.Answers, g.Gone = false, physical.Gone
	inv.setProblem(g, physical.Problem)
}

// logFailed logs the GPUs that never answered, once each.
func (inv *inventory) logFailed(failed []nvml.Failure) {
	for _, f := range failed {
		if f.UUID != "" {
			continue
		}
		if inv.log.Changed(fmt.Sprintf("index %d", f.Index), f.Err) {
			inv.logger.Error("a GPU does not answer and is not offered", "index", f.Index, "error", f.Err)
		}
	}
}

// list returns the GPUs in the order of their index, each before its instances.
func (inv *inventory) list() []share.GPU {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	all := make([]share.GPU, 0, len(inv.gpus))
	for _, g := range inv.gpus {
		all = append(all, *g)
	}
	slices.SortFunc(all, func(a, b share.GPU) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(slot(&a), slot(&b)))
	})
	return all
}

// slot returns the first memory slot of a MIG instance, and -1 for a physical GPU.
func slot(g *share.GPU) int {
	if g.Origin == nil {
		return -1
	}
	return g.Origin.Start
}

// setSizes sets which MIG instances a GPU can have, and with that its number of slices: as many as the largest one holds.
func (inv *inventory) setSizes(uuid string, sizes []placement.Profile) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	g := inv.gpus[uuid]
	g.Sizes = sizes
	g.SliceCount = int(placement.Largest(nil, sizes) / g.SliceBytes)
	inv.logger.Info("MIG instances of a GPU are created on demand", "gpu", uuid, "name", g.GroupName(), "slices", g.SliceCount,
		"slice_memory", size.Format(g.SliceBytes))
	inv.updateProblem(g)
}

// setWaits sets what keeps MIG from being turned on or off or its instances from being created; nil if nothing does.
func (inv *inventory) setWaits(uuid string, reason error) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	g := inv.gpus[uuid]
	g.Waits = ""
	if reason != nil {
		g.Waits = reason.Error()
	}
	inv.updateProblem(g)
}

// find returns the GPU with this UUID.
func (inv *inventory) find(uuid string) (share.GPU, bool) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	if g, ok := inv.gpus[uuid]; ok {
		return *g, true
	}
	return share.GPU{}, false
}

// owner returns the GPU of a device: the device's ID begins with the GPU's UUID, or is the UUID of one of its MIG instances.
func (inv *inventory) owner(id string) (share.GPU, bool) {
	uuid, _, _ := strings.Cut(id, "/")
	if g, ok := inv.find(uuid); ok {
		return g, true
	}
	for _, g := range inv.list() {
		if _, ok := mig.FindInstance(g.MIG.Instances, id); ok {
			return g, true
		}
	}
	return share.GPU{}, false
}

// names returns the names of the GPUs for messages.
func (inv *inventory) names() string {
	var names []string
	for _, g := range inv.list() {
		names = append(names, g.String())
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
