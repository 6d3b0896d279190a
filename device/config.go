package device

import (
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/internal/nomadapi"
	"github.com/tranche-gpu/tranche/internal/size"
)

const (
	// minSliceBytes keeps the number of slices per GPU in the thousands, because each is a device of its own to Nomad.
	minSliceBytes = 64 << 20

	minFingerprintPeriod = 100 * time.Millisecond

	// autoContextMemory is the value of context_memory with which it is measured.
	autoContextMemory = "auto"

	// The values of uncounted_memory.
	uncountedCharged, uncountedObserved, uncountedEnds = "charge", "observe", "end"
)

// configSpec is the schema of the plugin's block in an agent's configuration.
var configSpec = hclspec.NewObject(map[string]*hclspec.Spec{
	"enabled":            withDefault("enabled", "bool", `true`),
	"slice_memory":       withDefault("slice_memory", "string", strconv.Quote(defaultSliceMemory)),
	"ignored_gpu_ids":    withDefault("ignored_gpu_ids", "list(string)", `[]`),
	"fingerprint_period": withDefault("fingerprint_period", "string", `"1m"`),
	"driver_root":        withDefault("driver_root", "string", `"/"`),
	"state_dir":          withDefault("state_dir", "string", strconv.Quote(claim.DefaultStateDir)),
	"run_dir":            withDefault("run_dir", "string", strconv.Quote(claim.DefaultRunDir)),
	"context_memory":     withDefault("context_memory", "string", strconv.Quote(autoContextMemory)),
	"max_slices":         withDefault("max_slices", "number", `0`),
	"packing_hint":       withDefault("packing_hint", "bool", `false`),
	"uncounted_memory":   withDefault("uncounted_memory", "string", strconv.Quote(uncountedCharged)),
	"nomad_address":      withDefault("nomad_address", "string", `""`),
	"nomad_token_file":   withDefault("nomad_token_file", "string", `""`),
	"nomad_ca_file":      withDefault("nomad_ca_file", "string", `""`),
	"mode":               withDefault("mode", "string", strconv.Quote(string(claim.ModeSlice))),
	"compute":            withDefault("compute", "string", strconv.Quote(computeByDriver)),
	"enforcement":        withDefault("enforcement", "string", strconv.Quote(string(claim.EnforcementAuto))),
	"compute_bypass":     withDefault("compute_bypass", "string", strconv.Quote(string(layout.BypassObserved))),
	"replicas":           hclspec.NewAttr("replicas", "number", false),
	"mig":                hclspec.NewAttr("mig", "any", false),
	"gpu":                hclspec.NewAttr("gpu", "any", false),
})

func withDefault(name, kind, value string) *hclspec.Spec {
	return hclspec.NewDefault(hclspec.NewAttr(name, kind, false), hclspec.NewLiteral(value))
}

// Config is the plugin's block in an agent's configuration.
type Config struct {
	// Enabled is whether the plugin offers any devices.
	Enabled bool `codec:"enabled"`
	// SliceMemory is the GPU memory of one slice.
	SliceMemory string `codec:"slice_memory"`
	// IgnoredGPUIDs are the UUIDs of GPUs that are not to be offered.
	IgnoredGPUIDs []string `codec:"ignored_gpu_ids"`
	// FingerprintPeriod is how often the GPUs are queried.
	FingerprintPeriod string `codec:"fingerprint_period"`
	// DriverRoot is the directory tree in which the GPU driver is found.
	DriverRoot string `codec:"driver_root"`
	// StateDir and RunDir are where the ledger and the regions are.
	StateDir string `codec:"state_dir"`
	RunDir   string `codec:"run_dir"`
	// ContextMemory is the memory of a CUDA context, or "auto" to measure it.
	ContextMemory string `codec:"context_memory"`
	// MaxSlices is how many slices one reservation may have; 0 is any number. Like Replicas it may have a fraction here,
	// so that the error about it can name the option.
	MaxSlices float64 `codec:"max_slices"`
	// PackingHint publishes how many slices of each GPU are used.
	PackingHint bool `codec:"packing_hint"`
	// UncountedMemory is what happens if a claim's container uses more memory than it counts: that is taken from the claim's
	// limit ("charge"), only shown ("observe"), or the task is ended, too ("end").
	UncountedMemory string `codec:"uncounted_memory"`
	// NomadAddress, NomadTokenFile and NomadCAFile are how Nomad's API is reached, to look up what claims are for.
	NomadAddress   string `codec:"nomad_address"`
	NomadTokenFile string `codec:"nomad_token_file"`
	NomadCAFile    string `codec:"nomad_ca_file"`
	// Compute is who shares the GPUs' time: "driver", or "shares" for claims that compute in turns.
	Compute string `codec:"compute"`
	// ComputeBypass is what follows if programs of a claim compute outside of its turns: that is only shown ("observe"), the
	// claim is charged for it ("charge"), or its task is ended ("end").
	ComputeBypass string `codec:"compute_bypass"`
	// Enforcement is what holds tasks to their limits of memory: the GPU driver ("driver"), the shadow library ("library"), or
	// the driver where it can ("auto").
	Enforcement string `codec:"enforcement"`
	// Mode, Replicas and MIG say how the GPUs are shared that no gpu block matches.
	Mode     string   `codec:"mode"`
	Replicas *float64 `codec:"replicas"`
	MIG      any      `codec:"mig"`
	// GPU holds the gpu blocks, as HCL has decoded them.
	GPU any `codec:"gpu"`
}

// settings are a valid Config.
type settings struct {
	enabled           bool
	sharing           sharing
	maxSlices         int
	packingHint       bool
	ignored           map[string]bool
	fingerprintPeriod time.Duration
	driverRoot        string
	stateDir, runDir  string
	// uncounted is what happens to uncounted memory, a value of uncounted_memory.
	uncounted string
	// bypass is what follows if programs compute outside of their turns.
	bypass layout.Bypass
	nomad  nomadapi.Options
	// contextBytes is 0 if it is to be measured.
	contextBytes uint64
}

// ignoredUUIDs returns the GPUs that are not offered.
func (s *settings) ignoredUUIDs() []string { return slices.Sorted(maps.Keys(s.ignored)) }

// parse validates the configuration. An error names the option and its valid values.
func (c Config) parse() (*settings, error) {
	s := &settings{enabled: c.Enabled, packingHint: c.PackingHint, ignored: make(map[string]bool)}
	var err error
	if s.sharing, err = c.parseSharing(); err != nil {
		return nil, err
	}
	if s.maxSlices, err = wholeNumber("max_slices", c.MaxSlices); err != nil {
		return nil, err
	}
	if s.maxSlices < 0 {
		return nil, fmt.Errorf("max_slices must not be negative, got %d; 0 is for as many as a GPU has", s.maxSlices)
	}
	if !slices.Contains([]string{uncountedCharged, uncountedObserved, uncountedEnds}, c.UncountedMemory) {
		return nil, fmt.Errorf("uncounted_memory must be %q, %q or %q, got %q", uncountedCharged, uncountedObserved, uncountedEnds,
			c.UncountedMemory)
	}
	s.uncounted = c.UncountedMemory
	if s.bypass, err = c.parseBypass(s.sharing); err != nil {
		return nil, err
	}
	s.nomad = nomadapi.Options{Address: c.NomadAddress, TokenFile: c.NomadTokenFile, CAFile: c.NomadCAFile}
	if err := s.nomad.Check(); err != nil {
		return nil, err
	}
	if c.ContextMemory != autoContextMemory {
		if s.contextBytes, err = size.ParseGPU(c.ContextMemory); err != nil {
			return nil, fmt.Errorf("context_memory: %w, or %q to measure it", err, autoContextMemory)
		}
	}
	s.fingerprintPeriod, err = time.ParseDuration(c.FingerprintPeriod)
	if err != nil || s.fingerprintPeriod < minFingerprintPeriod {
		return nil, fmt.Errorf("fingerprint_period must be a duration of at least %s, such as \"1m\", got %q",
			minFingerprintPeriod, c.FingerprintPeriod)
	}
	for _, uuid := range c.IgnoredGPUIDs {
		if !gpuUUID.MatchString(uuid) {
			return nil, fmt.Errorf("ignored_gpu_ids must be UUIDs of GPUs, such as "+
				"\"GPU-6f2f5f4c-0b6e-4d7b-9d0c-0a1b2c3d4e5f\", got %q; nvidia-smi -L lists them", uuid)
		}
		s.ignored[uuid] = true
	}
	for _, dir := range []struct {
		option, value string
		setting       *string
	}{
		{"driver_root", c.DriverRoot, &s.driverRoot},
		{"state_dir", c.StateDir, &s.stateDir},
		{"run_dir", c.RunDir, &s.runDir},
	} {
		if !filepath.IsAbs(dir.value) {
			return nil, fmt.Errorf("%s must be an absolute path, got %q", dir.option, dir.value)
		}
		*dir.setting = filepath.Clean(dir.value)
	}
	return s, nil
}

// parseBypass returns what follows if programs compute outside of their turns, given how the GPUs are shared.
func (c Config) parseBypass(s sharing) (layout.Bypass, error) {
	switch b := layout.Bypass(c.ComputeBypass); {
	case !slices.Contains([]layout.Bypass{layout.BypassObserved, layout.BypassCharged, layout.BypassEnds}, b):
		return "", fmt.Errorf("compute_bypass must be %q, %q or %q, got %q", layout.BypassObserved, layout.BypassCharged,
			layout.BypassEnds, c.ComputeBypass)
	case b != layout.BypassObserved && !s.anyShares():
		return "", fmt.Errorf("compute_bypass = %q is for GPUs with compute = %q, and there are none; set that, or remove it", b,
			computeByShares)
	default:
		return b, nil
	}
}

// wholeNumber returns the value of an option that must not have a fraction.
func wholeNumber(option string, value float64) (int, error) {
	if value != math.Trunc(value) || math.Abs(value) > 1<<53 {
		return 0, fmt.Errorf("%s must be a whole number, got %v", option, value)
	}
	return int(value), nil
}

// gpuUUID matches the UUID of a GPU or a MIG instance as NVML writes it.
var gpuUUID = regexp.MustCompile(`^(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
