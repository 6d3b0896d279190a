package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/health"
	"github.com/tranche-gpu/tranche/claim/region"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
	"github.com/tranche-gpu/tranche/governor/status"
)

// updateGolden names the variable that makes the golden tests write what they get, to be read before it is committed.
const updateGolden = "TRANCHE_UPDATE_GOLDEN"

// TestStatus_Golden prints each table in each state that a row can be in.
func TestStatus_Golden(t *testing.T) {
	since := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	unhealthy := &health.Condition{Problem: "Xid 79: it fell off the bus", Since: since}
	gpu := claim.GPU{UUID: "GPU-0000", Index: 0, Name: "NVIDIA H200"}
	container := &claim.Container{Runtime: "runc", ID: "alloc-1"}
	task := &claim.Workload{
		Namespace: "default", Job: "web", Group: "gpu", Task: "train", Allocation: "3f2a91b0-0000-4000-8000-000000000000", Verified: true,
	}
	usage := &region.Usage{LimitBytes: 2 << 30, UsedBytes: 1 << 30, PeakBytes: 3 << 29, Refused: 7, Processes: make([]region.Process, 2)}
	row := func(id string, state claim.State, change func(*claimReport)) claimReport {
		c := claimReport{
			Claim: claim.Claim{ID: id, GPU: gpu, Slices: []string{gpu.UUID + "/slice-000", gpu.UUID + "/slice-001"}, LimitBytes: 2 << 30, Owner: claim.OwnerNomad},
			Mode:  claim.ModeSlice, State: state, Usage: usage,
		}
		if change != nil {
			change(&c)
		}
		return c
	}
	for name, r := range map[string]report{
		"empty":   {DriverVersion: "570.124.06", CUDAVersion: "12.8"},
		"nothing": {NVMLError: "no libnvidia-ml.so.1", LedgerError: "permission denied", LayoutError: "no layout", GovernorError: "no governor", HealthError: "no health"},
		"gpus": {DriverVersion: "570.124.06", CUDAVersion: "12.8", GPUs: []gpuReport{
			{
				Index: 0, UUID: gpu.UUID, Name: gpu.Name, Mode: claim.ModeSlice, MemoryBytes: 140 << 30, UsedBytes: 1 << 30, UtilizationPercent: 37,
				Slices: sliceReport{SliceBytes: 1 << 30, Total: 140, Taken: 10, Dormant: 3, Free: 130},
			},
			{Index: 1, UUID: "GPU-0001", Name: gpu.Name, Mode: claim.ModeExclusive, MemoryBytes: 140 << 30, UtilizationPercent: -1},
			{Index: 2, UUID: "GPU-0002", Mode: claim.ModeSlice, Error: "it does not answer", UtilizationPercent: -1},
			{Index: 3, UUID: "GPU-0003", Name: gpu.Name, Mode: claim.ModeMPS, Unhealthy: unhealthy, MemoryBytes: 140 << 30},
		}},
		"claims": {DriverVersion: "570.124.06", CUDAVersion: "12.8", Claims: []claimReport{
			row("00000001", claim.StateRunning, func(c *claimReport) { c.Container, c.Workload = container, task }),
			row("00000002", claim.StateReserved, func(c *claimReport) {
				c.Workload = &claim.Workload{Job: "we\nb", Task: "\x1b[2Jtrain", Namespace: "default", ContainerName: "train-3f2a91b0"}
			}),
			row("00000003", claim.StateDormant, func(c *claimReport) { c.Container = container }),
			row("00000004", claim.StateEnded, func(c *claimReport) { c.Owner, c.Workload = claim.OwnerExternal, &claim.Workload{ContainerName: "web"} }),
			row("00000005", claim.StateRunning, func(c *claimReport) { c.Owner, c.Slices = claim.OwnerRun, nil }), // has no container
			row("00000006", claim.StateRunning, func(c *claimReport) {
				c.Container = &claim.Container{Runtime: "crun", ID: "alloc-6", Lacks: "the image has musl"}
			}),
			row("00000007", claim.StateRunning, func(c *claimReport) { c.Container, c.GPUUnhealthy = container, unhealthy }),
			row("00000008", claim.StateRunning, func(c *claimReport) { c.Container, c.Usage, c.UsageError = container, nil, "usage is 3 bytes long" }),
			row("00000009", claim.StateRunning, func(c *claimReport) { c.Container, c.UsageWarning = container, "more than its limit" }),
			row("0000000a", claim.StateReserved, func(c *claimReport) { c.Mode, c.Unlimited, c.Usage = claim.ModeExclusive, true, nil }),
			row("0000000b", claim.StateReserved, func(c *claimReport) {
				c.Mode, c.GPU.UUID, c.MIG = claim.ModeMIG, "MIG-0000", &claim.MIG{GPUUUID: gpu.UUID, GPUIndex: 3}
			}),
			row("0000000c", claim.StateRunning, func(c *claimReport) {
				spilling := *usage
				spilling.Spill = &region.Spill{LimitBytes: 4 << 30, UsedBytes: 1 << 30}
				c.Container, c.Usage, c.GPUHostMemoryBytes = container, &spilling, 4<<30
			}),
			row("0000000d", claim.StateRunning, func(c *claimReport) {
				c.Container, c.Compute = container, &claim.Compute{Share: 300, Max: 500, Class: claim.ClassHigh}
				c.Turns = &status.Claim{GPUSeconds: 12.34, RecentPart: 0.2987, WaitingSeconds: 3.21, Overruns: 2, Joined: make([]status.Process, 3),
					NotJoined: []status.Process{{PID: 4711, Name: "a.out"}}}
			}),
			row("0000000e", claim.StateReserved, func(c *claimReport) {
				c.Compute = &claim.Compute{Share: 57, Max: 1000, Class: claim.ClassNormal}
			}),
		}, Problems: []claim.Problem{{Path: "/var/lib/tranche/claims/notes.txt", Reason: "something else put it here"}}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			must.NoError(t, r.print(&out))
			golden(t, filepath.Join("testdata", "status", name+".txt"), out.String())
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

// A program under `tranche run` may do to its own region what it likes: it stays visible, and what cannot be is marked.
func TestStatus_DamagedRun(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only what root runs shows")
	}
	for name, tc := range map[string]struct {
		damage func(t *testing.T, dir string)
		want   []string
	}{
		"none": {func(*testing.T, string) {}, []string{"1024 MiB", "0 MiB", "running", "run"}},
		"usage removed": {
			func(t *testing.T, dir string) { must.NoError(t, os.Remove(filepath.Join(dir, region.UsageFile))) },
			[]string{"1024 MiB", "?", "running", "run"},
		},
		"region removed": {
			func(t *testing.T, dir string) { must.NoError(t, os.RemoveAll(dir)) }, []string{"?", "?", "running", "run"},
		},
		"usage overwritten": {
			overwriteUsage, []string{"1024 MiB", " MiB (!)", "running", "run"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTrial(t)
			_, regions := tr.start(t, `echo "$TRANCHE_REGIONS"/*; exec sleep 1000`)
			tc.damage(t, regions)
			n := newNode(t, nvmltest.New(nvmltest.H200(0)))
			n.runDir = tr.runDir
			code, text, stderr := n.status()
			must.Eq(t, 0, code, must.Sprint(stderr))
			must.True(t, words(text, tc.want...), must.Sprint(text))
			must.Eq(t, name == "usage overwritten", strings.Contains(text, "damaged its region"), must.Sprint(text))
			must.Len(t, 1, n.statusJSON(t, 0).Claims)
		})
	}
}

// overwriteUsage writes over everything behind the header of a usage file, and holds all its slots, as a process of the
// claim can.
func overwriteUsage(t *testing.T, dir string) {
	t.Helper()
	const header = 64 // magic, version, size, claim, slots
	f, err := os.OpenFile(filepath.Join(dir, region.UsageFile), os.O_RDWR, 0)
	must.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	_, err = f.WriteAt(bytes.Repeat([]byte{0x5a}, region.UsageSize-header), header)
	must.NoError(t, err)
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	must.NoError(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock))
}
