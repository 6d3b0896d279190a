package report

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/health"
	"github.com/tranche-gpu/tranche/claim/region"
	"github.com/tranche-gpu/tranche/governor/status"
)

// updateGolden names the variable that makes the golden tests write what they get, to be read before it is committed.
const updateGolden = "TRANCHE_UPDATE_GOLDEN"

// TestReport_Golden prints each table in each state that a row can be in.
func TestReport_Golden(t *testing.T) {
	since := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	unhealthy := &health.Condition{Problem: "Xid 79: it fell off the bus", Since: since}
	gpu := claim.GPU{UUID: "GPU-0000", Index: 0, Name: "NVIDIA H200"}
	container := &claim.Container{Runtime: "runc", ID: "alloc-1"}
	task := &claim.Workload{
		Namespace: "default", Job: "web", Group: "gpu", Task: "train", Allocation: "3f2a91b0-0000-4000-8000-000000000000", Verified: true,
	}
	usage := &region.Usage{LimitBytes: 2 << 30, UsedBytes: 1 << 30, PeakBytes: 3 << 29, Refused: 7, Processes: make([]region.Process, 2)}
	row := func(id string, state claim.State, change func(*Claim)) Claim {
		c := Claim{
			Claim: claim.Claim{ID: id, GPU: gpu, Slices: []string{gpu.UUID + "/slice-000", gpu.UUID + "/slice-001"}, LimitBytes: 2 << 30, Owner: claim.OwnerNomad},
			Mode:  claim.ModeSlice, State: state, Usage: usage,
		}
		if change != nil {
			change(&c)
		}
		return c
	}
	for name, r := range map[string]Report{
		"empty":   {DriverVersion: "570.124.06", CUDAVersion: "12.8"},
		"nothing": {NVMLError: "no libnvidia-ml.so.1", LedgerError: "permission denied", LayoutError: "no layout", GovernorError: "no governor", HealthError: "no health"},
		"gpus": {DriverVersion: "570.124.06", CUDAVersion: "12.8", GPUs: []GPU{
			{
				Index: 0, UUID: gpu.UUID, Name: gpu.Name, Mode: claim.ModeSlice, MemoryBytes: 140 << 30, UsedBytes: 1 << 30, UtilizationPercent: 37,
				Slices: Slices{SliceBytes: 1 << 30, Total: 140, Taken: 10, Dormant: 3, Free: 130},
			},
			{Index: 1, UUID: "GPU-0001", Name: gpu.Name, Mode: claim.ModeExclusive, MemoryBytes: 140 << 30, UtilizationPercent: -1},
			{Index: 2, UUID: "GPU-0002", Mode: claim.ModeSlice, Error: "it does not answer", UtilizationPercent: -1},
			{Index: 3, UUID: "GPU-0003", Name: gpu.Name, Mode: claim.ModeMPS, Unhealthy: unhealthy, MemoryBytes: 140 << 30},
		}},
		"claims": {DriverVersion: "570.124.06", CUDAVersion: "12.8", Claims: []Claim{
			row("00000001", claim.StateRunning, func(c *Claim) { c.Container, c.Workload = container, task }),
			row("00000002", claim.StateReserved, func(c *Claim) {
				c.Workload = &claim.Workload{Job: "we\nb", Task: "\x1b[2Jtrain", Namespace: "default", ContainerName: "train-3f2a91b0"}
			}),
			row("00000003", claim.StateDormant, func(c *Claim) { c.Container = container }),
			row("00000004", claim.StateEnded, func(c *Claim) { c.Owner, c.Workload = claim.OwnerExternal, &claim.Workload{ContainerName: "web"} }),
			row("00000005", claim.StateRunning, func(c *Claim) { c.Owner, c.Slices = claim.OwnerRun, nil }), // has no container
			row("00000006", claim.StateRunning, func(c *Claim) {
				c.Container = &claim.Container{Runtime: "crun", ID: "alloc-6", Lacks: "the image has musl"}
			}),
			row("00000007", claim.StateRunning, func(c *Claim) { c.Container, c.GPUUnhealthy = container, unhealthy }),
			row("00000008", claim.StateRunning, func(c *Claim) { c.Container, c.Usage, c.UsageError = container, nil, "usage is 3 bytes long" }),
			row("00000009", claim.StateRunning, func(c *Claim) { c.Container, c.UsageWarning = container, "more than its limit" }),
			row("0000000a", claim.StateReserved, func(c *Claim) { c.Mode, c.Unlimited, c.Usage = claim.ModeExclusive, true, nil }),
			row("0000000b", claim.StateReserved, func(c *Claim) {
				c.Mode, c.GPU.UUID, c.MIG = claim.ModeMIG, "MIG-0000", &claim.MIG{GPUUUID: gpu.UUID, GPUIndex: 3}
			}),
			row("0000000c", claim.StateRunning, func(c *Claim) {
				spilling := *usage
				spilling.Spill = &region.Spill{LimitBytes: 4 << 30, UsedBytes: 1 << 30}
				c.Container, c.Usage, c.GPUHostMemoryBytes = container, &spilling, 4<<30
			}),
			row("0000000d", claim.StateRunning, func(c *Claim) {
				c.Container, c.Compute = container, &claim.Compute{Share: 300, Max: 500, Class: claim.ClassHigh}
				c.Turns = &status.Claim{GPUSeconds: 12.34, RecentPart: 0.2987, WaitingSeconds: 3.21, Overruns: 2, Joined: make([]status.Process, 3),
					NotJoined: []status.Process{{PID: 4711, Name: "a.out"}}}
			}),
			row("0000000e", claim.StateReserved, func(c *Claim) {
				c.Compute = &claim.Compute{Share: 57, Max: 1000, Class: claim.ClassNormal}
			}),
		}, Problems: []claim.Problem{{Path: "/var/lib/tranche/claims/notes.txt", Reason: "something else put it here"}}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			must.NoError(t, r.Print(&out))
			golden(t, filepath.Join("testdata", name+".txt"), out.String())
		})
	}
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if os.Getenv(updateGolden) != "" {
		must.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		must.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	must.NoError(t, err)
	must.Eq(t, string(want), got, must.Sprintf("set %s=1 to write %s", updateGolden, file))
}

func TestDescribeSlices(t *testing.T) {
	for want, names := range map[string][]string{
		"-":         nil,
		"3":         {"U/slice-003"},
		"0-2,5,7-8": {"U/slice-007", "U/slice-000", "U/slice-002", "U/slice-001", "U/slice-008", "U/slice-005"},
		"a,b":       {"a", "b"},
	} {
		must.Eq(t, want, DescribeSlices("U", names))
	}
}
