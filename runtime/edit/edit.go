// Package edit is the edits to an OCI spec that give a container the GPUs of its claims. It reads the node's files, and
// neither the configuration nor the ledger.
package edit

import (
	"context"
	"errors"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime/gpuinfo"
	"github.com/tranche-gpu/tranche/runtime/ocispec"
	"github.com/tranche-gpu/tranche/runtime/shadow"
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

// Node is where the edits find what they need on this node. New requires every field; runtime.Config has the defaults.
type Node struct {
	// DriverRoot is the directory tree that holds the GPU driver's libraries and device nodes.
	DriverRoot string
	// ShadowDir holds the shadow libraries: see package shadow.
	ShadowDir string
	// HookPath is the tranche-hook binary.
	HookPath string
	// CLIPath is the tranche binary, which queries NVML for statically linked programs and runs NVIDIA's CDI hooks.
	CLIPath string
	// StateDir and RunDir are the ledger's.
	StateDir string
	RunDir   string
	// CDISpecDirs are searched for specs of the kind nvidia.com/gpu, later ones first.
	CDISpecDirs []string
	// DriverCapabilities are those that containers may request, as in NVIDIA_DRIVER_CAPABILITIES.
	DriverCapabilities string
	// RefreshNodeInfo queries NVML for the node's GPUs.
	RefreshNodeInfo gpuinfo.Refresher
	// Logger receives messages for the operator.
	Logger Logger
}

// Place returns where the information about the node's GPUs is cached.
func (n Node) Place() gpuinfo.Place {
	return gpuinfo.Place{DriverRoot: n.DriverRoot, RunDir: n.RunDir, CLIPath: n.CLIPath}
}

// Logger receives messages for the operator, with names and values in turns. An hclog.Logger is one.
type Logger interface {
	claim.Logger
	Debug(message string, namesAndValues ...any)
}

// Claim is one claim of a container, and the directory of its region on the host, which is empty if the container has no
// limit.
type Claim struct {
	*claim.Claim
	RegionDir string
}

// anyShadowed reports whether a container with these claims gets the shadow libraries. If one claim needs them, they are in
// front of the driver for all, and have to know each: the limit of one without a limit is all of its GPU's memory.
func anyShadowed(claims []Claim) bool {
	return slices.ContainsFunc(claims, func(c Claim) bool { return c.Shadowed() })
}

// New returns all changes to the OCI spec of a container with these claims.
//
// The order matters: CDI adds the driver's files, the shadow libraries are mounted over them, and what must not be hidden by
// other mounts comes after both. If no claim needs the shadow, the container gets the driver without it.
func New(ctx context.Context, node Node, claims []Claim) (Modifier, error) {
	if err := checkHook(node.HookPath); err != nil {
		return nil, err
	}
	devices, err := newDevices(ctx, node, claims)
	if err != nil {
		return nil, err
	}
	mps, err := newMPSClient(node, claims)
	if err != nil {
		return nil, err
	}
	binding := BindingHooks{
		Path: node.HookPath, StateDir: node.StateDir, RunDir: node.RunDir, CLIPath: node.CLIPath, DriverRoot: node.DriverRoot,
		Claims: claims,
	}
	edits := Modifiers{LinuxContainer{}, devices, ForeignHooks{}}
	if !anyShadowed(claims) {
		return append(edits, mps, binding, otherGPUsCheck{binding: binding}, Environment{}, lockedFlags{}), nil
	}
	governed := slices.ContainsFunc(claims, func(c Claim) bool { return c.Governed() })
	libraries := shadow.Libraries{
		Dir: node.ShadowDir, Governed: governed,
		ComputeOnly: !slices.ContainsFunc(claims, func(c Claim) bool { return !c.ByDriver() }),
	}
	return append(edits,
		mps, // before the shadow: an image may have a link where these mounts go, so that they would hide the shadow
		shadowLibraries{libraries},
		RegionMounts{Claims: claims},
		binding,
		driverCopies{binding: binding, libraries: libraries},
		Environment{},
		lockedFlags{},
	), nil
}

// lockedFlags has the mounts keep what a user namespace may not take away.
type lockedFlags struct{}

// Modify edits mounts.
func (lockedFlags) Modify(spec *specs.Spec) error {
	ocispec.KeepLockedFlags(spec)
	return nil
}

// LinuxContainer refuses specs without the parts that the other edits change.
type LinuxContainer struct{}

// Modify returns an error for such specs.
func (LinuxContainer) Modify(spec *specs.Spec) error {
	if spec == nil || spec.Process == nil || spec.Linux == nil {
		return errors.New("edit the OCI spec: it has no process or no linux section; " +
			"claims can only be given to Linux containers that run a process")
	}
	return nil
}
