package device

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/health"
	"github.com/tranche-gpu/tranche/device/mig"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/share"
	sharemig "github.com/tranche-gpu/tranche/device/share/mig"
)

// Each way to share a GPU is changed into each other one over a restart of the agent, while a task has the GPU as it was and
// while none has.
func TestTransition(t *testing.T) {
	for _, from := range allModes {
		for _, to := range allModes {
			if from.name == to.name {
				continue
			}
			for task, test := range map[string]func(t *testing.T, from, to *modeCase){
				"free": testFreeTransition, "in use": testTransitionInUse,
			} {
				t.Run(fmt.Sprintf("%s to %s/%s", from.name, to.name, task), func(t *testing.T) {
					t.Parallel()
					test(t, &from, &to)
				})
			}
		}
	}
}

// begin shares the first GPU in one way and reserves of it what a job takes, for a container that has begun. The end of the
// container is what it returns.
func (n *sharedNode) begin(t *testing.T, from *modeCase) (made *claim.Claim, token claim.Token, end func()) {
	t.Helper()
	n.restart(t, from.block("index:0"))
	ctx, cancel := contextWithCancel(t)
	stream, err := n.plugin.Fingerprint(ctx)
	must.NoError(t, err)
	defer func() { cancel(); drain(stream) }()
	seen := offeredOf(next(t, stream).Devices, n.gpus[0])
	from.mustOffer(t, seen)
	made, token = n.reserve(t, from, n.gpus[0], seen)
	init := startSleep(t)
	ledger := n.plugin.node.Load().ledger
	must.NoError(t, ledger.Bind(t.Context(), made.ID, claim.Container{Runtime: "test", ID: "c", InitPID: init.Process.Pid}))
	made, err = ledger.Lookup(t.Context(), token)
	must.NoError(t, err)
	return made, token, func() { _ = init.Process.Kill(); _ = init.Wait() }
}

// testFreeTransition changes a GPU that no living task has.
func testFreeTransition(t *testing.T, from, to *modeCase) {
	n := newSharedNode(t)
	_, _, end := n.begin(t, from)
	end()
	n.restart(t, to.block("index:0"))
	stream := fingerprint(t, n.plugin)
	n.mustBecome(t, from, to, stream, next(t, stream))
}

// testTransitionInUse changes a GPU that a living task has, and then ends the task.
func testTransitionInUse(t *testing.T, from, to *modeCase) {
	n := newSharedNode(t)
	made, token, end := n.begin(t, from)
	n.restart(t, to.block("index:0"))
	stream := fingerprint(t, n.plugin)
	response := next(t, stream)
	n.mustWait(t, from, to, response, made)
	unhealthy, err := health.Read(n.plugin.node.Load().runDir)
	must.NoError(t, err)
	must.MapEmpty(t, unhealthy.GPUs, must.Sprint("the task would get an event"))
	n.mustKeep(t, made, token)
	end()
	// An instance that was made on demand may be one of those declared, so that nothing has to wait.
	if !to.offersAll(offeredOf(response.Devices, n.gpus[0])) {
		response = next(t, stream)
	}
	n.mustBecome(t, from, to, stream, response)
}

// mustWait checks that nothing of the GPU is given out but what its living claim lets be.
func (n *sharedNode) mustWait(t *testing.T, from, to *modeCase, response *ndevice.FingerprintResponse, made *claim.Claim) {
	t.Helper()
	seen := offeredOf(response.Devices, n.gpus[0])
	switch {
	case from.mode == claim.ModeMIG && to.mode == claim.ModeMIG:
		return // MIG stays on, and what there is beside the instance may be had
	case from.mode == claim.ModeMIG:
		must.True(t, startsWith("MIG is still on: it waits for claim "+made.ID+" to turn MIG off", seen.reasons), must.Sprint(seen.reasons))
	case to.onDemand():
		must.Eq(t, map[string]int{share.SliceType: 1}, seen.types)
		must.True(t, startsWith("MIG is not on: it waits for claim "+made.ID, seen.reasons), must.Sprint(seen.reasons))
	case to.mode == claim.ModeMIG:
		// There are no instances while the GPU is used as a whole, and one device says why.
		must.Eq(t, map[string]int{share.GPUType: 1}, seen.types)
		must.True(t, startsWith("MIG instances ", seen.reasons), must.Sprint(seen.reasons))
		must.StrContains(t, fmt.Sprint(seen.reasons), " are not there: it waits for claim "+made.ID+" to turn MIG on")
	default:
		must.Eq(t, to.offers, seen.types)
		must.True(t, startsWith("waits for claim "+made.ID+", whose GPU is in mode "+string(from.mode), seen.reasons), must.Sprint(seen.reasons))
	}
	must.SliceEmpty(t, seen.healthy)
}

// mustKeep checks that a living claim is as it was, limit and all.
func (n *sharedNode) mustKeep(t *testing.T, made *claim.Claim, token claim.Token) {
	t.Helper()
	kept, err := n.plugin.node.Load().ledger.Lookup(t.Context(), token)
	must.NoError(t, err)
	must.Eq(t, made, kept)
	if !strings.HasPrefix(made.GPU.UUID, "MIG-") {
		return
	}
	found, err := n.library.Read(t.Context())
	must.NoError(t, err)
	instance, ok := sharemig.FindInstance(found.GPUs[0].MIG.Instances, made.GPU.UUID)
	must.True(t, ok, must.Sprint("the instance that a task has was destroyed"))
	if made.MIG != nil {
		must.Eq(t, made.LimitBytes, instance.MemoryBytes)
	}
}

// mustBecome checks that the GPU becomes what is configured, and can be reserved.
func (n *sharedNode) mustBecome(
	t *testing.T, from, to *modeCase, stream <-chan *ndevice.FingerprintResponse, response *ndevice.FingerprintResponse,
) {
	t.Helper()
	g := n.gpus[0]
	seen := offeredOf(response.Devices, g)
	// MIG is turned on and off, and daemons are begun and ended, in more than one look.
	stepwise := from.mode == claim.ModeMIG || from.mode == claim.ModeMPS || to.onDemand() || to.mode == claim.ModeMPS
	for stepwise && !to.offersAll(seen) {
		seen = offeredOf(next(t, stream).Devices, g)
	}
	to.mustOffer(t, seen)
	n.reserve(t, to, g, seen)
	found, err := n.library.Read(t.Context())
	must.NoError(t, err)
	must.Eq(t, to.mode == claim.ModeMIG, found.GPUs[0].MIG.Enabled)
	must.Eq(t, to.mode == claim.ModeMPS, n.daemons.Owns(g.UUID))
}

// offersAll reports whether all devices of a GPU are healthy that is shared so.
func (w *modeCase) offersAll(seen offered) bool {
	count := 0
	for _, devices := range w.offers {
		count += devices
	}
	return len(seen.healthy) == count && strings.Join(seen.isolation, "") == w.isolation
}

// MIG that an operator turned on is not the plugin's to turn off, nor are the instances its to destroy.
func TestTransition_OperatorsMIG(t *testing.T) {
	n := newSharedNode(t)
	uuid := n.gpus[0].UUID
	must.NoError(t, n.library.SetMIG(t.Context(), uuid, true))
	profiles, err := n.library.MIGProfiles(t.Context(), uuid)
	must.NoError(t, err)
	smallest, at, ok := mig.Smallest(nil, nil, 1, profiles)
	must.True(t, ok)
	made, err := n.library.CreateInstance(t.Context(), uuid, smallest, at)
	must.NoError(t, err)
	for i := range allModes {
		to := &allModes[i]
		if to.mode == claim.ModeMIG {
			continue // it is the plugin's to cut up then
		}
		n.restart(t, to.block("index:0"))
		ctx, cancel := contextWithCancel(t)
		stream, err := n.plugin.Fingerprint(ctx)
		must.NoError(t, err)
		seen := offeredOf(next(t, stream).Devices, n.gpus[0])
		cancel()
		drain(stream)
		if to.mode == claim.ModeExclusive {
			must.Eq(t, []string{made.UUID}, seen.healthy)
		} else {
			must.True(t, startsWith("MIG is on, so that nothing can use the GPU as a whole", seen.reasons), must.Sprint(seen.reasons))
		}
	}
	found, err := n.library.Read(t.Context())
	must.NoError(t, err)
	must.Eq(t, []nvml.MIGInstance{made}, found.GPUs[0].MIG.Instances)
}

// A GPU may go behind an MPS control daemon if MIG will be off by then, which is so where the plugin turned it on.
func TestTransition_MIGToMPS(t *testing.T) {
	n := newSharedNode(t)
	must.NoError(t, n.library.SetMIG(t.Context(), n.gpus[1].UUID, true))
	n.restart(t, allModes[slices.IndexFunc(allModes, func(w modeCase) bool { return w.name == "mig" })].block("index:0"))
	next(t, fingerprint(t, n.plugin))
	found, err := n.library.Read(t.Context())
	must.NoError(t, err)
	for _, g := range found.GPUs[:2] {
		must.True(t, g.MIG.Enabled)
	}
	node := n.plugin.node.Load()
	check := func(g nvml.GPU) error {
		return node.modes[claim.ModeMPS].Check(t.Context(), node.layout.WithoutOwnMIG(g), share.Policy{Mode: claim.ModeMPS})
	}
	must.ErrorContains(t, check(found.GPUs[0]), "nvidia-cuda-mps-control", must.Sprint("that this node lacks"))
	must.ErrorContains(t, check(found.GPUs[1]), "MIG is on")
}
