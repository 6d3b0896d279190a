package device

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/memsize"
)

// policy is how one GPU is shared.
type policy struct {
	mode claim.Mode
	// sliceBytes is the memory of a slice, in the modes that have slices; mode mig has some where it has no profiles.
	sliceBytes uint64
	// replicas is how many share the GPU in mode timeslice.
	replicas int
	// profiles are the MIG instances to make, in mode mig.
	profiles []string
}

// sliced tells whether Nomad counts slices of the GPU.
func (p *policy) sliced() bool { return p.mode == claim.ModeSlice || p.mode == claim.ModeMPS }

// onDemand tells whether MIG instances are made as slices are reserved.
func (p *policy) onDemand() bool { return p.mode == claim.ModeMIG && len(p.profiles) == 0 }

const (
	// minReplicas and maxReplicas bound by how many a GPU may be shared in turns.
	minReplicas, maxReplicas = 2, 1000
	// defaultSliceMemory is a slice unless the configuration says otherwise.
	defaultSliceMemory = "1GiB"
)

// modes are those that an operator may choose.
var modes = []claim.Mode{claim.ModeSlice, claim.ModeExclusive, claim.ModeTimeslice, claim.ModeMPS, claim.ModeMIG}

// or takes from the defaults what the options leave open. A block that chooses a mode of its own takes over only the
// memory of a slice: the rest belongs to the default's mode.
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
	return o
}

// hasSlices tells whether slice_memory has a meaning.
func (o sharingOptions) hasSlices() bool {
	switch claim.Mode(o.Mode) {
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

// parse checks the options. An error names the option and what it may be.
func (o sharingOptions) parse() (policy, error) {
	p := policy{mode: claim.Mode(o.Mode), profiles: o.profiles()}
	if !slices.Contains(modes, p.mode) {
		return policy{}, fmt.Errorf("mode: %q is none of %s", o.Mode, quotedModes())
	}
	if err := o.checkOthers(p); err != nil {
		return policy{}, err
	}
	var err error
	if p.sliced() || p.onDemand() {
		if p.sliceBytes, err = parseSliceMemory(o.SliceMemory); err != nil {
			return policy{}, err
		}
	}
	if p.mode == claim.ModeTimeslice {
		if p.replicas, err = o.parseReplicas(); err != nil {
			return policy{}, err
		}
	}
	return p, nil
}

// checkOthers refuses options that mean nothing in the mode: whoever sets one expects something of it.
func (o sharingOptions) checkOthers(p policy) error {
	switch {
	case len(o.MIG) > 1:
		return errors.New("mig: it is there twice; put all profiles into one")
	case slices.ContainsFunc(p.profiles, isNoProfile):
		return fmt.Errorf("mig.profiles: %q is not the name of a profile, such as \"3g.20gb\"",
			p.profiles[slices.IndexFunc(p.profiles, isNoProfile)])
	case o.MIG != nil && p.mode != claim.ModeMIG:
		return fmt.Errorf("mig: it belongs to mode %q, and the mode is %q", claim.ModeMIG, p.mode)
	case o.Replicas != nil && p.mode != claim.ModeTimeslice:
		return fmt.Errorf("replicas: it belongs to mode %q, and the mode is %q", claim.ModeTimeslice, p.mode)
	case o.SliceMemory != "" && len(p.profiles) > 0:
		return errors.New("slice_memory: the instances are what mig.profiles say, so there are no slices; remove one of the two")
	case o.SliceMemory != "" && !p.sliced() && !p.onDemand():
		return fmt.Errorf("slice_memory: there are no slices in mode %q", p.mode)
	}
	return nil
}

// profileName is how drivers name the profiles of MIG instances: slices of computing, memory, and engines that are added
// or left out.
var profileName = regexp.MustCompile(`^[0-9]+g\.[0-9]+gb([+-][a-z.]+)?$`)

func isNoProfile(name string) bool { return !profileName.MatchString(name) }

func (o sharingOptions) parseReplicas() (int, error) {
	if o.Replicas == nil {
		return 0, fmt.Errorf("replicas: mode %q needs to know by how many the GPU may be shared, such as replicas = 10",
			claim.ModeTimeslice)
	}
	if *o.Replicas < minReplicas || *o.Replicas > maxReplicas {
		return 0, fmt.Errorf("replicas: %d is not from %d to %d", *o.Replicas, minReplicas, maxReplicas)
	}
	return *o.Replicas, nil
}

func parseSliceMemory(text string) (uint64, error) {
	bytes, err := memsize.ParseGPU(text)
	if err != nil {
		return 0, fmt.Errorf("slice_memory: %w", err)
	}
	if bytes < minSliceBytes {
		return 0, fmt.Errorf("slice_memory: %s is too little, it must be 64MiB or more", text)
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
