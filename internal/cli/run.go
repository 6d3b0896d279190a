package cli

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/enforcement"
	"github.com/tranche-gpu/tranche/internal/cli/private"
	"github.com/tranche-gpu/tranche/internal/proc"
	"github.com/tranche-gpu/tranche/internal/size"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

type runOptions struct {
	place
	memory, hostMemory, gpu, shadowDir, contextMemory, enforcement string
	compute                                                        computeFlags
}

// runName is the command whose own failures have a code that few programs have.
const runName = "run"

func (a *app) runCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   runName + " --memory SIZE [flags] -- COMMAND [ARG...]",
		Short: "Run a program under a limit of GPU memory, without a container",
		Long: `Run a program under a limit of GPU memory, without a container.

The program and its children see one GPU, number 0, with as much memory as the limit, which applies to all of them together. With
--host-memory, cuMemAlloc returns managed memory on the host when the limit is reached, up to this second limit. The
program is slower where it uses that memory.

The exit status is that of the program, or 128 + n if signal n ended it. It is 125 if Tranche could not prepare the run,
126 if the program cannot be run, and 127 if it was not found.

With --share, --max or --priority it also has a part of the GPU's time and computes in turns with the other claims there: see
docs/compute.md. This needs root, and a governor.

With --enforcement driver the GPU driver enforces the limit, by a cgroup of the command. This needs root, cgroup v2, and NVIDIA's
driver R615 or later; auto takes it where it works. Else the shadow library does, whose limit applies to programs that load the GPU
driver in the usual ways, and is not a security boundary: a program can clear its environment.`,
		Example: `  tranche run --memory 8GiB -- python3 train.py
  tranche run --memory 512MiB --gpu 1 -- ./a.out
  tranche run --memory 8GiB --host-memory 16GiB -- python3 train.py
  tranche run --memory 8GiB --share 30 --max 50 -- python3 train.py`,
		Args: withUsage(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error { return a.run(cmd.Context(), o, args) },
	}
	cmd.Flags().SetInterspersed(false) // what follows the command's name is the command's
	cmd.Flags().StringVar(&o.memory, "memory", "", "limit of GPU memory, such as `1GiB` or 512MiB")
	cmd.Flags().StringVar(&o.hostMemory, "host-memory", "0",
		"how much more may be allocated beyond that limit, in the host's memory, such as `4GiB`")
	cmd.Flags().StringVar(&o.enforcement, "enforcement", string(claim.EnforcementAuto),
		"what enforces the limit: `driver`, library, or auto")
	o.compute.addFlags(cmd)
	cmd.Flags().StringVar(&o.gpu, "gpu", "",
		"`index` or UUID of the GPU, as nvidia-smi has it, or UUID of a MIG instance (default: that of\n"+
			"CUDA_VISIBLE_DEVICES or NVIDIA_VISIBLE_DEVICES, or 0)")
	cmd.Flags().StringVar(&o.shadowDir, "shadow-dir", "",
		"`directory` of the shadow libraries (default: beside this program, or shadow_dir of the configuration)")
	cmd.Flags().StringVar(&o.contextMemory, "context-memory", "",
		"what a CUDA context takes on the GPU, instead of measuring it")
	cmd.Flags().Lookup("context-memory").Hidden = true
	o.addFlags(cmd)
	return cmd
}

func (a *app) run(ctx context.Context, o runOptions, args []string) error {
	code, err := a.runUnderLimit(ctx, o, args)
	if err == nil && code != 0 {
		err = &exitError{code: code}
	}
	return err
}

func (a *app) runUnderLimit(ctx context.Context, o runOptions, args []string) (code int, err error) {
	path, err := findCommand(args[0])
	if err != nil {
		return 0, err
	}
	if err := a.checkOutermost(); err != nil {
		return 0, err
	}
	config, err := a.loadConfig()
	if err != nil {
		return 0, err
	}
	shadows, err := private.FindShadows(o.shadowDir, config.ShadowDir)
	if err != nil {
		return 0, err
	}
	c, err := a.privateClaim(ctx, o)
	if err != nil {
		return 0, err
	}
	leave, err := a.enforceByDriver(ctx, o, c)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, leave()) }()
	if err := private.CheckLoader(path); err != nil && c.Shadowed() {
		return 0, &exitError{exitCannotExecute, fmt.Errorf("cannot run %s: %w", args[0], err)}
	}
	dir, err := a.prepare(o, c, shadows)
	if err != nil {
		return 0, fmt.Errorf("preparing the run: %w", err)
	}
	defer func() { err = errors.Join(err, dir.Remove()) }()
	if err := awaitGovernor(ctx, dir, c); err != nil {
		return 0, err
	}

	cmd := &exec.Cmd{
		Path: path, Args: args,
		Env:   dir.Environment(a.environ, c),
		Stdin: a.stdin, Stdout: a.stdout, Stderr: a.stderr,
	}
	return runChild(cmd)
}

// enforceByDriver has the GPU driver enforce the claim's limit on this process and its children, if it is to and can. The returned
// function ends that.
func (a *app) enforceByDriver(ctx context.Context, o runOptions, c *claim.Claim) (leave func() error, err error) {
	nothing := func() error { return nil }
	wanted, err := claim.ParseEnforcement(o.enforcement)
	switch {
	case err != nil:
		return nil, fmt.Errorf("--%w", err)
	case wanted == claim.EnforcementDriver && c.GPUHostMemoryBytes > 0:
		return nil, errors.New("--host-memory needs --enforcement library: the driver has no such limit")
	case wanted == claim.EnforcementLibrary || c.GPUHostMemoryBytes > 0:
		return nothing, nil
	}
	byDriver := *c
	byDriver.Enforcement = claim.EnforcementDriver
	leave, err = enforcement.Enter(ctx, a.openNVML(o.driverRoot), &byDriver)
	switch {
	case err == nil:
		c.Enforcement = claim.EnforcementDriver
		return leave, nil
	case wanted == claim.EnforcementDriver:
		return nil, fmt.Errorf("--enforcement driver: %w", err)
	}
	return nothing, nil
}

// containerDir is where a container of ours has its regions.
const containerDir = "/.tranche"

// checkOutermost makes sure that there is no limit here yet, since a second one would replace it.
func (a *app) checkOutermost() error {
	if _, ok := private.LookupEnv(a.environ, private.RegionsVariable); ok {
		return errors.New("this is already under the limit of another `tranche run`, which the new one would replace: " +
			"run the command without")
	}
	if _, err := os.Lstat(containerDir); err == nil {
		return errors.New("this is a container with a limit of its own: run the command without `tranche run`")
	}
	return nil
}

// privateClaim is a claim on the GPU's memory that is in no ledger.
func (a *app) privateClaim(ctx context.Context, o runOptions) (*claim.Claim, error) {
	if o.memory == "" {
		return nil, errors.New("--memory is missing: it is the limit of GPU memory, such as 1GiB or 512MiB")
	}
	limit, err := size.ParseGPU(o.memory)
	if err != nil {
		return nil, fmt.Errorf("--memory: %w", err)
	}
	hostMemory, err := size.Parse(o.hostMemory)
	if err != nil {
		return nil, fmt.Errorf("--host-memory: %w", err)
	}
	node, err := a.readGPUs(ctx, o.driverRoot)
	if err != nil {
		return nil, fmt.Errorf("looking for GPUs (--driver-root says where the driver is): %w", err)
	}
	choice, err := chosenGPU(o.gpu, a.environ, node)
	if err != nil {
		return nil, err
	}
	g, err := choice.find(node)
	if err != nil {
		return nil, err
	}
	contextBytes, err := a.contextBytes(ctx, o, node, g)
	if err != nil {
		return nil, err
	}
	if limit < contextBytes {
		return nil, fmt.Errorf("--memory: %s is less than the %s that one CUDA context takes on GPU %d (%s) before the "+
			"first allocation: ask for more", size.Format(limit), size.Format(contextBytes), g.Index, g.Name)
	}
	if limit > g.UsableBytes() {
		return nil, fmt.Errorf("--memory: %s is more than GPU %d (%s) has, which is %s",
			size.Format(limit), g.Index, g.Name, size.Format(g.UsableBytes()))
	}
	part, err := o.runCompute(limit, g.UsableBytes())
	if err != nil {
		return nil, err
	}
	self, err := proc.Self()
	if err != nil {
		return nil, err
	}
	return &claim.Claim{
		ID:         newID(),
		GPU:        claim.GPU{UUID: g.UUID, Index: g.Index, Name: g.Name, ContextBytes: contextBytes},
		LimitBytes: limit, GPUHostMemoryBytes: hostMemory,
		Owner:   claim.OwnerRun,
		Created: time.Now(),
		Compute: part,
		// The command's processes descend from this one.
		Container: &claim.Container{
			Runtime: "tranche", InitPID: self.PID, InitStartTime: self.StartTime, BootID: self.BootID,
		},
	}, nil
}

func newID() string {
	var id [4]byte
	_, _ = rand.Read(id[:]) // never fails, by its documentation
	return hex.EncodeToString(id[:])
}

func (a *app) contextBytes(ctx context.Context, o runOptions, node *nvml.Node, g nvml.GPU) (uint64, error) {
	if o.contextMemory != "" {
		bytes, err := size.ParseGPU(o.contextMemory)
		if err != nil {
			return 0, fmt.Errorf("--context-memory: %w", err)
		}
		return bytes, nil
	}
	return a.contextCost(ctx, a.costOptions(o.place), costKey(node, g))
}

// costCache is where measurements are kept: with the device plugin's, or with the user's own.
func costCache(stateDir string) string {
	const name = "context-cost.json"
	if os.Geteuid() == 0 {
		return filepath.Join(stateDir, name)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "tranche", name)
}

func (a *app) prepare(o runOptions, c *claim.Claim, shadows string) (*private.Dir, error) {
	if c.Governed() {
		libraries := private.Libraries(c, shadows)
		if err := shadow.Check(libraries.Path(shadow.CUDA), shadow.CUDA); err != nil {
			return nil, err
		}
	}
	base, err := private.Base(o.runDir, a.environ)
	if err != nil {
		return nil, err
	}
	if strings.ContainsAny(base, ": ") {
		return nil, fmt.Errorf("the directory %q has a space or a colon in its name, which LD_PRELOAD cannot hold: "+
			"set another with --run-dir or XDG_RUNTIME_DIR", base)
	}
	dir, err := private.New(base)
	if err != nil {
		return nil, err
	}
	if err := dir.Fill(c, shadows, o.driverRoot); err != nil {
		return nil, errors.Join(err, dir.Remove())
	}
	return dir, nil
}
