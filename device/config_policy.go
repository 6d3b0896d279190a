package device

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/share"
	"github.com/tranche-gpu/tranche/internal/size"
)

const (
	// minReplicas and maxReplicas bound the number of replicas in mode timeslice.
	minReplicas, maxReplicas = 2, 1000
	// defaultSliceMemory is the default of slice_memory.
	defaultSliceMemory = "1GiB"
	// The values of compute.
	computeByDriver, computeByShares = "driver", "shares"
)

// modes are the valid values of the option mode.
var modes = []claim.Mode{claim.ModeSlice, claim.ModeExclusive, claim.ModeTimeslice, claim.ModeMPS, claim.ModeMIG}

// or returns the options with unset ones taken from the defaults. A block with a mode of its own inherits only
// slice_memory and compute, because the other options belong to the default's mode, and only where its mode has them.
func (o sharingOptions) or(defaults sharingOptions) sharingOptions {
	own := o.Mode != "" && o.Mode != defaults.Mode
	if o.Mode == "" {
		o.Mode = defaults.Mode
	}
	if o.Replicas == nil && !own {
		o.Replicas = defaults.Replicas
	}
	if o.MIG == nil && !own {
		o.MIG = defaults.MIG
	}
	if o.SliceMemory == "" && o.hasSlices() {
		o.SliceMemory = defaults.SliceMemory
	}
	if o.Compute == "" && (!own || claim.WhyNoShares(o.tasksMode()) == "") {
		o.Compute = defaults.Compute
	}
	if o.Enforcement == "" && o.instancesMode() == "" && o.tasksMode().Sliced() {
		o.Enforcement = defaults.Enforcement
	}
	return o
}

// tasksMode returns the mode in which tasks share a GPU, or with mig.mode each of its declared MIG instances.
func (o sharingOptions) tasksMode() claim.Mode {
	if mode := o.instancesMode(); mode != "" {
		return mode
	}
	return claim.Mode(o.Mode)
}

// instancesMode returns mig.mode; empty if it is not set.
func (o sharingOptions) instancesMode() claim.Mode {
	for _, section := range o.MIG {
		if section.Mode != "" {
			return claim.Mode(section.Mode)
		}
	}
	return ""
}

// hasSlices reports whether the mode has slices, so that slice_memory is valid.
func (o sharingOptions) hasSlices() bool {
	switch o.tasksMode() {
	case claim.ModeExclusive, claim.ModeTimeslice:
		return false
	case claim.ModeMIG:
		return len(o.profiles()) == 0
	}
	return true
}

func (o sharingOptions) profiles() []string {
	var profiles []string
	for _, section := range o.MIG {
		profiles = append(profiles, section.Profiles...)
	}
	return profiles
}

// parse validates the options. An error names the option and its valid values.
func (o sharingOptions) parse() (share.Policy, error) {
	if !slices.Contains(modes, claim.Mode(o.Mode)) {
		return share.Policy{}, fmt.Errorf("mode must be one of %s, got %q", quotedModes(), o.Mode)
	}
	if err := o.checkMIG(); err != nil {
		return share.Policy{}, err
	}
	if o.instancesMode() == "" {
		return o.parseTasks(share.Policy{Mode: claim.Mode(o.Mode), Profiles: o.profiles()})
	}
	instances, err := o.parseTasks(share.Policy{Mode: o.instancesMode()})
	return share.Policy{Mode: claim.ModeMIG, Profiles: o.profiles(), Instances: &instances}, err
}

// parseTasks completes a policy by the options about the tasks that share a GPU or an instance.
func (o sharingOptions) parseTasks(p share.Policy) (share.Policy, error) {
	p.Shares = o.Compute == computeByShares
	var err error
	if p.Enforcement, err = o.parseEnforcement(p); err != nil {
		return share.Policy{}, err
	}
	if err := o.checkTasks(p); err != nil {
		return share.Policy{}, err
	}
	if p.Sliced() || p.OnDemand() {
		if p.SliceBytes, err = parseSliceMemory(o.SliceMemory); err != nil {
			return share.Policy{}, err
		}
	}
	if p.Mode == claim.ModeTimeslice {
		if p.Replicas, err = o.parseReplicas(); err != nil {
			return share.Policy{}, err
		}
	}
	return p, nil
}

// parseEnforcement returns what holds tasks to their limits. There is a choice only without MIG: the driver limits no instance.
func (o sharingOptions) parseEnforcement(p share.Policy) (claim.Enforcement, error) {
	e, err := claim.ParseEnforcement(o.Enforcement)
	switch {
	case err != nil:
		return "", err
	case p.Sliced() && o.instancesMode() == "":
		return e, nil
	case e == claim.EnforcementDriver:
		return "", fmt.Errorf("enforcement = %q is for GPUs in mode %q or %q, got mode %q; remove it", e, claim.ModeSlice, claim.ModeMPS,
			o.Mode)
	}
	return "", nil
}

// checkMIG checks the block mig.
func (o sharingOptions) checkMIG() error {
	profiles := o.profiles()
	switch mode := o.instancesMode(); {
	case len(o.MIG) > 1:
		return errors.New("mig must be there once only; put all profiles into one block")
	case slices.ContainsFunc(profiles, isNoProfile):
		return fmt.Errorf("mig.profiles must be names of profiles, such as \"3g.20gb\", got %q",
			profiles[slices.IndexFunc(profiles, isNoProfile)])
	case o.MIG != nil && claim.Mode(o.Mode) != claim.ModeMIG:
		return fmt.Errorf("mig is for mode %q, and the mode is %q", claim.ModeMIG, o.Mode)
	case mode != "" && mode != claim.ModeSlice && mode != claim.ModeTimeslice:
		return fmt.Errorf("mig.mode must be %q or %q, got %q; leave it out if each instance is for one task", claim.ModeSlice,
			claim.ModeTimeslice, mode)
	case mode != "" && len(profiles) == 0:
		return errors.New("mig.mode needs mig.profiles: an instance that is created on demand is for one task")
	}
	return nil
}

// checkTasks refuses options that have no effect in the mode.
func (o sharingOptions) checkTasks(p share.Policy) error {
	switch {
	case o.Compute != "" && o.Compute != computeByDriver && !p.Shares:
		return fmt.Errorf("compute must be %q or %q, got %q", computeByDriver, computeByShares, o.Compute)
	case p.Shares && claim.WhyNoShares(p.Mode) != "":
		return fmt.Errorf("compute = %q is for modes %q and %q, and the mode is %q: %s", computeByShares, claim.ModeSlice,
			claim.ModeTimeslice, p.Mode, claim.WhyNoShares(p.Mode))
	case o.Replicas != nil && p.Mode != claim.ModeTimeslice:
		return fmt.Errorf("replicas is for mode %q, and the mode is %q", claim.ModeTimeslice, p.Mode)
	case o.SliceMemory != "" && len(p.Profiles) > 0:
		return errors.New("slice_memory and mig.profiles exclude each other: with profiles there are no slices; remove one of the two, " +
			"or set mig.mode = \"slice\"")
	case o.SliceMemory != "" && !p.Sliced() && !p.OnDemand():
		return fmt.Errorf("slice_memory is not for mode %q, which has no slices", p.Mode)
	}
	return nil
}

// profileName matches the names of MIG profiles: compute slices, memory, and engines that are added or left out.
var profileName = regexp.MustCompile(`^[0-9]+g\.[0-9]+gb([+-][a-z.]+)?$`)

func isNoProfile(name string) bool { return !profileName.MatchString(name) }

func (o sharingOptions) parseReplicas() (int, error) {
	if o.Replicas == nil {
		return 0, fmt.Errorf("replicas must be set in mode %q, such as replicas = 10", claim.ModeTimeslice)
	}
	if *o.Replicas < minReplicas || *o.Replicas > maxReplicas {
		return 0, fmt.Errorf("replicas must be from %d to %d, got %d", minReplicas, maxReplicas, *o.Replicas)
	}
	return *o.Replicas, nil
}

func parseSliceMemory(text string) (uint64, error) {
	bytes, err := size.ParseGPU(text)
	if err != nil {
		return 0, fmt.Errorf("slice_memory: %w", err)
	}
	if bytes < minSliceBytes {
		return 0, fmt.Errorf("slice_memory must be at least 64MiB, got %q", text)
	}
	return bytes, nil
}

func quotedModes() string {
	var quoted []string
	for _, mode := range modes {
		quoted = append(quoted, fmt.Sprintf("%q", mode))
	}
	return strings.Join(quoted, ", ")
}
