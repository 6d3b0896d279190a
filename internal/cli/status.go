package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/health"
	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/claim/region"
	"github.com/tranche-gpu/tranche/claim/runs"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/governor/status"
	"github.com/tranche-gpu/tranche/internal/cli/private"
	"github.com/tranche-gpu/tranche/internal/size"
)

// report is what `tranche status --json` prints. Programs rely on its names.
type report struct {
	DriverVersion string `json:"driver_version,omitempty"`
	CUDAVersion   string `json:"cuda_version,omitempty"`
	// NVMLError says why nothing is known from NVML; the GPUs are then those that the claims name.
	NVMLError string `json:"nvml_error,omitempty"`
	// LedgerError says why nothing is known from the ledger.
	LedgerError string `json:"ledger_error,omitempty"`
	// LayoutError says why it is not known how the device plugin shares the GPUs.
	LayoutError string `json:"layout_error,omitempty"`
	// HealthError says why it is not known which GPUs the device plugin takes to be unhealthy.
	HealthError string `json:"health_error,omitempty"`
	// GovernorError says why it is not known what the governed claims have had of their GPUs' time.
	GovernorError string          `json:"governor_error,omitempty"`
	GPUs          []gpuReport     `json:"gpus"`
	Claims        []claimReport   `json:"claims"`
	Problems      []claim.Problem `json:"problems"`
}

type gpuReport struct {
	Index int    `json:"index"`
	UUID  string `json:"uuid,omitempty"`
	Name  string `json:"name,omitempty"`
	// Mode is how the GPU is shared: as the device plugin says, else as the claims on it do.
	Mode claim.Mode `json:"mode"`
	// Error says why the GPU does not answer.
	Error string `json:"error,omitempty"`
	// Unhealthy is what makes the GPU unhealthy, as the device plugin says; nil if nothing does.
	Unhealthy          *health.Condition `json:"unhealthy,omitempty"`
	MemoryBytes        uint64            `json:"memory_bytes,omitempty"`
	UsedBytes          uint64            `json:"used_bytes"`
	UtilizationPercent int               `json:"utilization_percent"` // -1: not known
	Slices             sliceReport       `json:"slices"`
}

// sliceReport counts the slices of a GPU. Total and Free are 0 where NVML does not say how large the GPU is. In a mode
// without slices all are 0 but Taken and Dormant, which count what claims have of the GPU: itself, shares, instances.
type sliceReport struct {
	SliceBytes uint64 `json:"slice_bytes"`
	Total      int    `json:"total"`
	// Taken are those of claims that run or are reserved; all others are free. Dormant are the free ones whose claim
	// waits for a restart in place until others reserve them.
	Taken   int `json:"taken"`
	Dormant int `json:"dormant"`
	Free    int `json:"free"`
}

type claimReport struct {
	claim.Claim
	// Mode is the claim's, which records leave out where it is slice.
	Mode  claim.Mode  `json:"mode"`
	State claim.State `json:"state"`
	// Workload is what the claim was made for; nil if that is not known.
	Workload *claim.Workload `json:"workload,omitempty"`
	// Usage is nil, and UsageError says why, where it cannot be read; of a claim without a limit nobody counts it.
	Usage      *region.Usage `json:"usage,omitempty"`
	UsageError string        `json:"usage_error,omitempty"`
	// UsageWarning says why Usage is not to be believed; empty if nothing speaks against it.
	UsageWarning string `json:"usage_warning,omitempty"`
	// GPUUnhealthy is what makes the claim's GPU unhealthy; nil if nothing does.
	GPUUnhealthy *health.Condition `json:"gpu_unhealthy,omitempty"`
	// Uncounted says that the container uses GPU memory that the claim's region does not count; nil if it is not seen to.
	Uncounted *health.Condition `json:"uncounted,omitempty"`
	// Turns is what a governed claim has had of its GPU's time, as the governor says; nil if none does.
	Turns *status.Claim `json:"turns,omitempty"`
}

type statusOptions struct {
	place
	sliceMemory string
	json        bool
}

func (a *app) statusCommand() *cobra.Command {
	var o statusOptions
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the GPUs of this node, their slices, and who holds them",
		Long: `Show the GPUs of this node, their slices, and who holds them.

The exit status is 1 where the ledger or the GPUs cannot be read. The ledger is for root alone, so this wants to run as root. What other users have running under ` + "`tranche run`" + `
does not show.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.status(cmd.Context(), o) },
	}
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON, for programs")
	addSliceMemory(cmd, &o.sliceMemory)
	o.addFlags(cmd)
	return cmd
}

func (a *app) status(ctx context.Context, o statusOptions) error {
	sliceBytes, err := size.ParseGPU(o.sliceMemory)
	if err != nil {
		return fmt.Errorf("--slice-memory: %w", err)
	}
	r := report{GPUs: []gpuReport{}, Claims: []claimReport{}, Problems: []claim.Problem{}}
	node, err := a.readGPUs(ctx, o.driverRoot)
	if err != nil {
		r.NVMLError, node = err.Error(), &nvml.Node{}
	}
	ledgerErr := r.addLedger(ctx, o.place)
	r.addRuns(o.runDir)
	shared, err := layout.Read(o.runDir)
	if err != nil {
		r.LayoutError = err.Error()
	}
	r.addGPUs(node, shared, sliceBytes)
	r.addHealth(o.runDir)
	r.addTurns(o.runDir, time.Now())

	if o.json {
		err = a.printJSON(r)
	} else {
		err = r.print(a.stdout)
	}
	if err == nil && (ledgerErr != nil || r.NVMLError != "") {
		return &exitError{code: exitFailure} // the report tells the rest
	}
	return err
}

// addLedger adds the claims of the ledger, and what is wrong with it.
func (r *report) addLedger(ctx context.Context, p place) error {
	ledger, err := claim.Open(claim.Options{StateDir: p.stateDir, RunDir: p.runDir})
	if err == nil {
		err = r.addClaims(ctx, ledger)
	}
	if err != nil {
		r.LedgerError = err.Error()
	}
	return err
}

func (r *report) addClaims(ctx context.Context, ledger *claim.Ledger) error {
	claims, problems, err := ledger.List(ctx)
	if err != nil {
		return err
	}
	r.Problems = append(r.Problems, problems...)
	for _, c := range claims {
		u, err := ledger.Usage(ctx, c.ID)
		if errors.Is(err, claim.ErrUnknownClaim) {
			continue // gone since
		}
		cr := newClaimReport(c, ledger.State(c, time.Now()), u, err)
		if w, ok := ledger.Workload(c.ID); ok {
			cr.Workload = &w
		}
		r.Claims = append(r.Claims, cr)
	}
	return nil
}

func newClaimReport(c *claim.Claim, state claim.State, u region.Usage, err error) claimReport {
	cr := claimReport{Claim: *c, Mode: cmp.Or(c.Mode, claim.ModeSlice), State: state, Usage: &u}
	if err != nil {
		cr.Usage = nil
	}
	if err != nil && !errors.Is(err, claim.ErrNotCounted) {
		cr.UsageError = err.Error()
	}
	if err == nil && u.UsedBytes > u.LimitBytes {
		cr.UsageWarning = fmt.Sprintf("its region says %s used of a limit of %s: the driver took more than was foreseen, or a "+
			"process of the claim damaged its region; nvidia-smi on the host shows what is held", mebibytes(u.UsedBytes), mebibytes(u.LimitBytes))
	}
	return cr
}

// addRuns adds what root has running under `tranche run`, which is in no ledger.
func (r *report) addRuns(runDir string) {
	for _, region := range private.Regions(runDir) {
		r.addRun(region)
	}
}

func (r *report) addRun(dir string) {
	h, err := region.ReadHeader(dir)
	var u region.Usage
	if err == nil {
		u, err = region.Read(dir)
	}
	if _, statErr := os.Stat(filepath.Dir(filepath.Dir(dir))); statErr != nil {
		return // ended in the meantime
	}
	c := &claim.Claim{
		ID:         filepath.Base(dir),
		GPU:        claim.GPU{UUID: h.GPUUUID, ContextBytes: h.ContextBytes},
		Slices:     []string{},
		LimitBytes: h.LimitBytes, GPUHostMemoryBytes: h.SpillBytes,
		Owner: claim.OwnerRun,
	}
	if info, statErr := os.Stat(dir); statErr == nil {
		c.Created = info.ModTime().UTC()
	}
	if recorded, recordErr := runs.ReadRecord(dir); recordErr == nil {
		c.Compute = recorded.Compute
	}
	r.Claims = append(r.Claims, newClaimReport(c, claim.StateRunning, u, err))
}
