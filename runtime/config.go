package runtime

import (
	"path/filepath"
	"slices"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime/compute"
	"github.com/tranche-gpu/tranche/runtime/edit"
	"github.com/tranche-gpu/tranche/runtime/request"
)

// Where things are on a node unless its configuration says otherwise.
const (
	DefaultDriverRoot = "/"
	DefaultShadowDir  = "/usr/lib/tranche"
	DefaultHookPath   = "/usr/bin/tranche-hook"
	DefaultCLIPath    = "/usr/bin/tranche"
	DefaultStateDir   = claim.DefaultStateDir
	DefaultRunDir     = claim.DefaultRunDir
)

// The memory of one slice unless the configuration says otherwise, and the least that it may be. Both are equal to the device
// plugin's.
const (
	DefaultSliceBytes = 1 << 30
	minSliceBytes     = 64 << 20
)

// The policies for a container that requests GPUs without a claim: without_claim in the configuration.
const (
	// WithoutClaimDeny refuses it.
	WithoutClaimDeny = "deny"
	// WithoutClaimVoid starts it without a GPU.
	WithoutClaimVoid = "void"
	// WithoutClaimPass leaves it alone: other tools, such as NVIDIA's runtime, may give it whole GPUs.
	WithoutClaimPass = "pass"
)

// defaultRuntimes are looked for, in this order, if the configuration names none.
var defaultRuntimes = []string{"runc", "crun"}

// Config is the configuration of the edits and of tranche-runtime. Empty fields mean the defaults.
type Config struct {
	// Node is what the edits need. The default for CDISpecDirs is etc/cdi and var/run/cdi under the driver root, for
	// DriverCapabilities all, for RefreshNodeInfo the command at CLIPath; without a Logger nothing is logged.
	edit.Node
	// Runtime is the OCI runtime that tranche-runtime becomes: a path, or a name to look up in PATH. Empty means the first
	// of Runtimes that is installed; empty Runtimes are runc and crun.
	Runtime  string
	Runtimes []string
	// WithoutClaim is the policy for containers that request GPUs without a claim: WithoutClaimDeny or another.
	WithoutClaim string
	// GPUHostMemoryMaxBytes is the most host memory that a container may request beyond its limit: see GPUHostMemory.
	GPUHostMemoryMaxBytes uint64
	// Compute is what a container may state of its part of a GPU's time.
	Compute compute.Bounds
	// SliceBytes is the memory of one slice, equal to the device plugin's.
	SliceBytes uint64
	// Enforcement is what is to hold containers to their limits of GPU memory, on GPUs that the device plugin does not share.
	Enforcement claim.Enforcement
	// LocalClaims decides which containers may request a fraction of a GPU without a scheduler.
	LocalClaims request.Policy
}

// WithDefaults returns the configuration with every empty field filled in.
func (c Config) WithDefaults() Config {
	setDefault(&c.DriverRoot, DefaultDriverRoot)
	setDefault(&c.ShadowDir, DefaultShadowDir)
	setDefault(&c.HookPath, DefaultHookPath)
	setDefault(&c.CLIPath, DefaultCLIPath)
	setDefault(&c.StateDir, DefaultStateDir)
	setDefault(&c.RunDir, DefaultRunDir)
	setDefault(&c.DriverCapabilities, edit.AllCapabilities)
	if len(c.CDISpecDirs) == 0 {
		c.CDISpecDirs = []string{
			filepath.Join(c.DriverRoot, "etc/cdi"),
			filepath.Join(c.DriverRoot, "var/run/cdi"),
		}
	}
	setDefault(&c.WithoutClaim, WithoutClaimDeny)
	if len(c.Runtimes) == 0 {
		c.Runtimes = slices.Clone(defaultRuntimes)
	}
	if c.SliceBytes == 0 {
		c.SliceBytes = DefaultSliceBytes
	}
	setDefault((*string)(&c.LocalClaims), string(request.On))
	setDefault((*string)(&c.Enforcement), string(claim.EnforcementAuto))
	if c.Logger == nil {
		c.Logger = silent{}
	}
	return c
}

// NextRuntimes returns the OCI runtimes that tranche-runtime may become, in the order of preference.
func (c Config) NextRuntimes() []string {
	if c.Runtime != "" {
		return []string{c.Runtime}
	}
	return c.Runtimes
}

func setDefault(field *string, value string) {
	if *field == "" {
		*field = value
	}
}

// silent is the Logger of a configuration without one. It spares tranche-runtime the start of a logging library.
type silent struct{}

func (silent) Debug(string, ...any) {}
func (silent) Info(string, ...any)  {}
func (silent) Warn(string, ...any)  {}
