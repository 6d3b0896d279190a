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
	"github.com/tranche-gpu/tranche/claim/memsize"
	"github.com/tranche-gpu/tranche/device/mig"
	"github.com/tranche-gpu/tranche/device/nvml"
)

// gpu is a GPU that this node has, or had since the plugin started.
type gpu struct {
	nvml.GPU
	driverVersion, cudaVersion string
	// policy is how the GPU is shared.
	policy
	// slices is how many there are, in the modes that have some. It stays what
	// it was at first, although what the driver reserves for itself may vary.
	slices int
	// sizes are the profiles to choose from where instances are made on demand;
	// none before they are known.
	sizes []mig.Profile
	// condition is what makes the GPU unfit although it answers, and waits what
	// keeps it from being cut up by MIG; empty if nothing does.
	condition, waits string
	// answers is whether the driver tells of the GPU at the moment.
	answers bool
	// gone is whether nothing can use the GPU, since it is off the bus, or its driver is away.
	gone bool
	// problem is why the GPU can't be used at the moment; empty if it can.
	problem string
}

// String names a GPU in messages.
func (g *gpu) String() string { return fmt.Sprintf("%s (%s)", g.groupName(), g.UUID) }

// groupName is the name of the GPU's device group. Nomad makes it part of a
// node's class, so that it must be the same on nodes of the same build.
func (g *gpu) groupName() string { return fmt.Sprintf("%s #%d", g.Name, g.Index) }

// sliceID names one slice of the GPU.
func (g *gpu) sliceID(number int) string { return claim.SliceName(g.UUID, number) }

// inventory is what is known of the node's GPUs. A GPU that was seen once stays
// in it: Nomad has to hear that it is unhealthy rather than that it never was.
type inventory struct {
	settings *settings
	logger   hclog.Logger

	mu   sync.Mutex
	gpus map[string]*gpu
	// changed is whether the current update found anything new.
	changed  bool
	reported reported
}

func newInventory(s *settings, logger hclog.Logger) *inventory {
	return &inventory{settings: s, logger: logger, gpus: make(map[string]*gpu)}
}

// update takes in what NVML said, and what makes GPUs that answer unfit all the
// same. It returns the GPUs that are new or usable
// again, and whether anything changed that Nomad should know.
func (inv *inventory) update(node *nvml.Node, conditions map[string]string, err error) (usable []gpu, changed bool) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	inv.changed = false
	if err != nil {
		inv.driverFailed(err)
		return nil, inv.changed
	}
	if inv.reported.changed("driver", nil) {
		inv.logger.Info("the GPU driver answers", "driver_version", node.DriverVersion, "gpus", len(node.GPUs))
	}
	answered := make(map[string]bool)
	for _, found := range node.GPUs {
		if inv.settings.ignored[found.UUID] {
			continue
		}
		answered[found.UUID] = true
		if inv.answered(node, found, conditions[found.UUID]) {
			usable = append(usable, *inv.gpus[found.UUID])
		}
	}
	lost := 0
	for uuid, g := range inv.gpus {
		if !answered[uuid] {
			inv.lost(g, node.Failed)
			lost++
		}
	}
	// Those that don't answer are more likely the ones that are missing.
	if len(node.Failed) > lost {
		inv.reportStrangers(node.Failed)
	}
	return usable, inv.changed
}

// driverFailed takes in that no GPU answers.
func (inv *inventory) driverFailed(err error) {
	var noDriver *nvml.NoDriverError
	for _, g := range inv.gpus {
		g.answers, g.gone = false, errors.As(err, &noDriver)
		inv.setProblem(g, "the GPU driver does not answer: "+err.Error())
	}
	if !inv.reported.changed("driver", err) {
		return
	}
	if errors.As(err, &noDriver) {
		inv.logger.Warn("no GPU driver, so this node offers no slices until there is one",
			"driver_root", inv.settings.driverRoot, "looking_again_every", inv.settings.fingerprintPeriod.String(), "error", err)
		return
	}
	inv.logger.Error("the GPU driver does not answer", "driver_root", inv.settings.driverRoot,
		"trying_again_every", inv.settings.fingerprintPeriod.String(), "error", err)
}

// answered takes in a GPU that answered, and says whether it is new or back.
func (inv *inventory) answered(node *nvml.Node, found nvml.GPU, condition string) bool {
	g, known := inv.gpus[found.UUID]
	if known {
		found.Index, found.Traits = g.Index, g.Traits
		g.GPU, g.answers, g.gone = found, true, false
		g.driverVersion, g.cudaVersion = node.DriverVersion, node.CUDAVersion
		was := g.problem
		g.condition = condition
		inv.setOwnProblem(g)
		return was != "" && g.problem == ""
	}
	found.Index = inv.freeIndex(found.Index)
	g = &gpu{
		GPU: found, answers: true, driverVersion: node.DriverVersion, cudaVersion: node.CUDAVersion,
		policy: inv.settings.sharing.of(found), condition: condition,
	}
	if g.sliced() {
		g.slices = int(found.UsableBytes() / g.sliceBytes)
	}
	inv.gpus[found.UUID] = g
	inv.changed = true
	inv.logger.Info("GPU found", "gpu", g.UUID, "name", g.groupName(), "memory", memsize.Format(g.MemoryBytes),
		"mode", string(g.mode), "slices", g.slices)
	inv.setOwnProblem(g)
	return g.problem == ""
}

// freeIndex is the index that a new GPU gets. NVML numbers those that are left
// anew when one falls off the bus; here a GPU keeps its index as long as the
// plugin runs, since the index is part of its group's name.
func (inv *inventory) freeIndex(index int) int {
	taken := make(map[int]bool)
	for _, g := range inv.gpus {
		taken[g.Index] = true
	}
	if !taken[index] {
		return index
	}
	for index = 0; taken[index]; index++ {
	}
	return index
}

// ownProblem is why a GPU that answers can't be used all the same.
func (g *gpu) ownProblem() string {
	if g.onDemand() {
		return g.demandProblem()
	}
	if g.MIG.Enabled && g.mode != claim.ModeMIG && g.waits != "" {
		return "MIG is still on: " + g.waits
	}
	if g.MIG.Enabled && g.mode != claim.ModeMIG && g.mode != claim.ModeExclusive {
		return fmt.Sprintf("MIG is on, so that nothing can use the GPU as a whole: turn it off (nvidia-smi -i %d -mig 0), or "+
			"share the GPU in mode %q", g.Index, claim.ModeMIG)
	}
	if g.mode == claim.ModeMPS {
		if err := lacksMPS(g.GPU); err != nil {
			return err.Error()
		}
	}
	if !g.sliced() || g.slices > 0 {
		return ""
	}
	return fmt.Sprintf("slice_memory is %s, but the GPU has only %s for processes: set it to less",
		memsize.Format(g.sliceBytes), memsize.Format(g.UsableBytes()))
}

// setOwnProblem says of a GPU that answers what keeps it from being used.
func (inv *inventory) setOwnProblem(g *gpu) {
	if !g.answers {
		return
	}
	problem := cmp.Or(g.condition, g.ownProblem())
	if err := inv.settings.checkContext(g.GPU, g.policy); problem == "" && err != nil {
		problem = err.Error()
	}
	inv.setProblem(g, problem)
}

func (inv *inventory) setProblem(g *gpu, problem string) {
	if g.problem == problem {
		return
	}
	g.problem = problem
	inv.changed = true
	log := inv.logger.With("gpu", g.UUID, "name", g.groupName())
	if problem == "" {
		log.Info("GPU is usable again")
	} else {
		log.Error("GPU is not usable", "reason", problem)
	}
}

// lost takes in that a GPU that was there isn't among those that answered. The
// first reason stays: NVML forgets which GPU it was that doesn't answer as soon
// as a new session with it is begun.
func (inv *inventory) lost(g *gpu, failed []nvml.Failure) {
	g.answers, g.gone = false, true
	for _, f := range failed {
		if f.UUID == g.UUID {
			inv.setProblem(g, "the GPU does not answer: "+f.Err.Error())
			return
		}
	}
	if g.problem == "" {
		inv.setProblem(g, "the driver no longer lists the GPU: it fell off the bus or was taken out")
	}
}

// reportStrangers logs the GPUs that never answered, once each.
func (inv *inventory) reportStrangers(failed []nvml.Failure) {
	for _, f := range failed {
		if f.UUID != "" {
			continue
		}
		if inv.reported.changed(fmt.Sprintf("index %d", f.Index), f.Err) {
			inv.logger.Error("a GPU does not answer and is not offered", "index", f.Index, "error", f.Err)
		}
	}
}

// list returns the GPUs in the order of their index.
func (inv *inventory) list() []gpu {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	all := make([]gpu, 0, len(inv.gpus))
	for _, g := range inv.gpus {
		all = append(all, *g)
	}
	slices.SortFunc(all, func(a, b gpu) int { return cmp.Compare(a.Index, b.Index) })
	return all
}

// find returns the GPU with this UUID.
func (inv *inventory) find(uuid string) (gpu, bool) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	if g, ok := inv.gpus[uuid]; ok {
		return *g, true
	}
	return gpu{}, false
}

// owner returns the GPU that a device is of, by the device's ID: it begins with
// the GPU's UUID, or is that of an instance that the GPU has.
func (inv *inventory) owner(id string) (gpu, bool) {
	uuid, _, _ := strings.Cut(id, "/")
	if g, ok := inv.find(uuid); ok {
		return g, true
	}
	for _, g := range inv.list() {
		if hasInstance(g.MIG.Instances, id) {
			return g, true
		}
	}
	return gpu{}, false
}

// names lists the GPUs for messages.
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
