// Package runtime makes a container get its fraction of a GPU: it edits the container's OCI spec, from the claims that
// the container holds, and it is the OCI runtime that does so for whoever starts containers through it.
//
// The task driver edits specs before containerd sees them; tranche-runtime does it for everybody else. Both call
// Prepare, so there is one set of edits.
package runtime

import (
	"context"
	"errors"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime/nodeinfo"
	"github.com/tranche-gpu/tranche/runtime/request"
)

// Where things are on a node unless its configuration says otherwise.
const (
	DefaultDriverRoot = "/"
	DefaultShadowDir  = "/usr/lib/tranche"
	DefaultHookPath   = "/usr/bin/tranche-hook"
	DefaultCLIPath    = "/usr/bin/tranche"
	DefaultStateDir   = "/var/lib/tranche"
	DefaultRunDir     = "/run/tranche"
)

// Modifier is one change to an OCI spec.
type Modifier interface {
	Modify(*specs.Spec) error
}

// Modifiers applies several changes, in order, and stops at the first that fails.
type Modifiers []Modifier

// Modify applies every change in order.
func (m Modifiers) Modify(spec *specs.Spec) error {
	for _, modifier := range m {
		if err := modifier.Modify(spec); err != nil {
			return err
		}
	}
	return nil
}

// Config says where on this node to find what the edits need. Empty fields mean the defaults.
type Config struct {
	// DriverRoot is the directory tree that holds the GPU driver's libraries and device nodes.
	DriverRoot string
	// ShadowDir holds the shadow libraries, libcuda.so.1 and libnvidia-ml.so.1.
	ShadowDir string
	// HookPath is the tranche-hook binary.
	HookPath string
	// CLIPath is the tranche binary. It asks NVML for whoever can't, and runs NVIDIA's CDI hooks.
	CLIPath string
	// StateDir and RunDir are those of the ledger.
	StateDir string
	RunDir   string
	// CDISpecDirs are searched for specs of the kind nvidia.com/gpu, later ones first. Empty means etc/cdi and
	// var/run/cdi under the driver root.
	CDISpecDirs []string
	// Runtime is the OCI runtime that tranche-runtime becomes: a path, or a name to look up in PATH. Empty means the first
	// of Runtimes that is installed; empty Runtimes are runc and crun.
	Runtime  string
	Runtimes []string
	// WithoutClaim is what becomes of a container that asks for GPUs and holds no claim: WithoutClaimDeny or another.
	WithoutClaim string
	// DriverCapabilities are those that containers may ask for, as in NVIDIA_DRIVER_CAPABILITIES. Empty means all.
	DriverCapabilities string
	// GPUHostMemoryMaxBytes is the most that a container may ask for beyond its limit: see GPUHostMemory.
	GPUHostMemoryMaxBytes uint64
	// SliceBytes is the memory of one slice, as the device plugin has it.
	SliceBytes uint64
	// LocalClaims is who may ask for a fraction of a GPU without a scheduler.
	LocalClaims request.Policy
	// RefreshNodeInfo asks NVML for the node's GPUs; nil has the command at CLIPath do so.
	RefreshNodeInfo nodeinfo.Refresher
	// Logger receives what an operator may want to know; nil logs nothing.
	Logger Logger
}

// WithDefaults returns the configuration with every empty field filled in.
func (c Config) WithDefaults() Config {
	setDefault(&c.DriverRoot, DefaultDriverRoot)
	setDefault(&c.ShadowDir, DefaultShadowDir)
	setDefault(&c.HookPath, DefaultHookPath)
	setDefault(&c.CLIPath, DefaultCLIPath)
	setDefault(&c.StateDir, DefaultStateDir)
	setDefault(&c.RunDir, DefaultRunDir)
	setDefault(&c.DriverCapabilities, allNames)
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
	c.setAskingDefaults()
	if c.Logger == nil {
		c.Logger = silent{}
	}
	return c
}

// runtimes are the OCI runtimes to become, the best first.
func (c Config) runtimes() []string {
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

// Grant is one claim that a container is to hold, and the directory of its region on the host, which is empty where nothing
// of the container's is limited.
type Grant struct {
	Claim     *claim.Claim
	RegionDir string
}

// Prepare turns claims into the edits that the container containerID, which is to hold them, needs. It makes sure that
// the regions which it needs exist, and refuses claims that another living container holds: binding would refuse them too,
// but only once the container has been built.
//
// What the container may allocate beyond its limit, hostMemoryBytes, is of HostMemoryClaim.
func Prepare(
	ctx context.Context, ledger *claim.Ledger, cfg Config, containerID string, claims []*claim.Claim,
	hostMemoryBytes uint64,
) (Modifier, error) {
	grants, err := newGrants(ctx, ledger, containerID, claims, hostMemoryBytes)
	if err != nil {
		return nil, err
	}
	return Edits(ctx, cfg, grants)
}

// Edits are all changes to a container's OCI spec that its grants call for. Without grants there are none.
//
// The order matters: CDI brings the driver's files, the shadow libraries go over them, and what must not be hidden by
// anything else in the spec comes after both. Where no claim has a limit, there is nothing that a shadow would hold to one,
// and the container gets the driver as it is.
func Edits(ctx context.Context, cfg Config, grants []Grant) (Modifier, error) {
	if len(grants) == 0 {
		return Modifiers{}, nil
	}
	cfg = cfg.WithDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if err := checkHook(cfg.HookPath); err != nil {
		return nil, err
	}
	devices, err := newDeviceEdits(ctx, cfg, grants)
	if err != nil {
		return nil, err
	}
	mps, err := newMPSClient(cfg, grants)
	if err != nil {
		return nil, err
	}
	binding := bindingHooks{path: cfg.HookPath, stateDir: cfg.StateDir, runDir: cfg.RunDir, grants: grants}
	edits := Modifiers{linuxContainer{}, devices, foreignHooks{}}
	if !anyLimited(grants) {
		return append(edits, binding, othersCheck{binding: binding}, environment{}), nil
	}
	return append(edits,
		mps, // before the shadow: an image may have a link where these mounts go, so that they would lie over it
		shadowLibraries{dir: cfg.ShadowDir},
		regionMounts{grants: grants},
		binding,
		shadowedCopies{binding: binding, shadowDir: cfg.ShadowDir},
		environment{},
	), nil
}

// linuxContainer refuses specs that the other edits have no meaning for.
type linuxContainer struct{}

func (linuxContainer) Modify(spec *specs.Spec) error {
	if spec == nil || spec.Process == nil || spec.Linux == nil {
		return errors.New("edit the OCI spec: it has no process or no linux section; " +
			"claims can only be given to Linux containers that run a process")
	}
	return nil
}
