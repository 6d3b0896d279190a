package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/agent"
	"github.com/tranche-gpu/tranche/agent/page"
	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/region"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
	"github.com/tranche-gpu/tranche/internal/cli/private"
	"github.com/tranche-gpu/tranche/internal/cli/report"
)

// statusNode is a node with a ledger for `tranche status`.
type statusNode struct {
	*app
	stateDir, runDir string
	ledger           *claim.Ledger
}

func newNode(t *testing.T, library nvml.Interface) *statusNode {
	t.Helper()
	n := &statusNode{app: testApp(library), stateDir: t.TempDir(), runDir: t.TempDir()}
	var err error
	n.ledger, err = claim.Open(claim.Options{StateDir: n.stateDir, RunDir: n.runDir})
	must.NoError(t, err)
	return n
}

func (n *statusNode) reserve(t *testing.T, g nvml.GPU, from, to int) *claim.Claim {
	t.Helper()
	r := claim.Request{
		GPU:        claim.GPU{UUID: g.UUID, Index: g.Index, Name: g.Name, ContextBytes: testContextBytes},
		LimitBytes: uint64(to-from+1) << 30, Owner: claim.OwnerNomad,
	}
	for i := from; i <= to; i++ {
		r.Slices = append(r.Slices, fmt.Sprintf("%s/slice-%03d", g.UUID, i))
	}
	c, _, err := n.ledger.Reserve(context.Background(), r)
	must.NoError(t, err)
	return c
}

func (n *statusNode) bind(t *testing.T, c *claim.Claim, id string) *exec.Cmd {
	t.Helper()
	return n.bindLacking(t, c, id, "")
}

func (n *statusNode) bindLacking(t *testing.T, c *claim.Claim, id, lacks string) *exec.Cmd {
	t.Helper()
	init := exec.Command("sleep", "1000")
	must.NoError(t, init.Start())
	t.Cleanup(func() { _ = init.Process.Kill(); _ = init.Wait() })
	must.NoError(t, n.ledger.Bind(context.Background(), c.ID,
		claim.Container{Runtime: "runc", ID: id, InitPID: init.Process.Pid, Lacks: lacks}))
	return init
}

func (n *statusNode) status(args ...string) (code int, stdout, stderr string) {
	return n.command(append([]string{"status", "--state-dir", n.stateDir, "--run-dir", n.runDir}, args...)...)
}

func (n *statusNode) command(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	n.stdout, n.stderr = &out, &errs
	code = n.main(args)
	return code, out.String(), errs.String()
}

func (n *statusNode) statusJSON(t *testing.T, wantCode int) report.Report {
	t.Helper()
	code, out, stderr := n.status("--json")
	must.Eq(t, wantCode, code)
	must.Eq(t, "", stderr)
	var r report.Report
	must.NoError(t, json.Unmarshal([]byte(out), &r), must.Sprint(out))
	return r
}

// words tells whether the text has a line with these words in this order, whatever is between them.
func words(text string, words ...string) bool {
line:
	for line := range strings.Lines(text) {
		for _, w := range words {
			_, rest, found := strings.Cut(line, w)
			if !found {
				continue line
			}
			line = rest
		}
		return true
	}
	return false
}

// TestStatus_CountsAsAllTools compares the slices that status, top and the agent's metrics count: a dormant claim's are free for all.
func TestStatus_CountsAsAllTools(t *testing.T) {
	g := nvmltest.H200(0)
	n := newNode(t, nvmltest.New(g))
	n.bind(t, n.reserve(t, g, 0, 7), "alloc-1")
	n.reserve(t, g, 8, 9)
	dormant := n.reserve(t, g, 10, 12)
	n.end(t, dormant, "alloc-2")
	must.NoError(t, n.ledger.Release(t.Context(), dormant.ID, "alloc-2"))

	status := n.statusJSON(t, 0).GPUs[0].Slices
	must.Eq(t, report.Slices{SliceBytes: 1 << 30, Total: 140, Taken: 10, Dormant: 3, Free: 130}, status)

	code, out, _ := n.command("top", "--once", "--json", "--state-dir", n.stateDir, "--run-dir", n.runDir)
	must.Eq(t, 0, code)
	var top struct {
		GPUs []struct{ Slices map[string]int }
	}
	must.NoError(t, json.Unmarshal([]byte(out), &top), must.Sprint(out))
	shown := top.GPUs[0].Slices

	m, err := n.monitor(place{stateDir: n.stateDir, runDir: n.runDir}, defaultSliceMemory, hclog.NewNullLogger())
	must.NoError(t, err)
	handler, err := agent.Handler(m, page.Options{})
	must.NoError(t, err)
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	for state, want := range map[string]int{"running": 8, "reserved": 2, "dormant": 3, "free": 127} {
		must.Eq(t, want, shown[state], must.Sprint(state))
		must.RegexMatch(t, regexp.MustCompile(fmt.Sprintf(`tranche_gpu_slices\{[^}]*state="%s"[^}]*\} %d\n`, state, want)), answer.Body.String())
	}
	must.Eq(t, status.Free, shown["free"]+shown["dormant"])
}

func TestStatus(t *testing.T) {
	busy, idle := nvmltest.H200(0), nvmltest.H200(1)
	busy.UsedBytes, busy.UtilizationPercent, idle.UtilizationPercent = 5<<30, 37, -1
	fake := nvmltest.New(busy, idle)
	fake.SetFailed(nvml.Failure{Index: 2, Err: errors.New("it fell off the bus")})
	unmanaged := exec.Command("sleep", "1000")
	must.NoError(t, unmanaged.Start())
	t.Cleanup(func() { _ = unmanaged.Process.Kill(); _ = unmanaged.Wait() })
	fake.SetProcesses(idle.UUID, nvml.Process{PID: unmanaged.Process.Pid, UsedBytes: 3<<30 + 1, UsedKnown: true})
	n := newNode(t, fake)
	running := n.reserve(t, busy, 0, 7)
	n.bind(t, running, "alloc-1")
	reserved := n.reserve(t, busy, 8, 9)
	dormant := n.reserve(t, busy, 10, 12)
	gone := n.bind(t, dormant, "alloc-2")
	must.NoError(t, gone.Process.Kill())
	_ = gone.Wait()
	must.NoError(t, os.WriteFile(filepath.Join(n.stateDir, "claims", "notes.txt"), nil, 0o600))

	r := n.statusJSON(t, 0)
	must.Eq(t, "570.124.06", r.DriverVersion)
	must.Eq(t, "12.8", r.CUDAVersion)
	must.Len(t, 3, r.GPUs)
	must.Eq(t, report.GPU{
		UUID: busy.UUID, Name: "NVIDIA H200", Mode: claim.ModeSlice, MemoryBytes: 143771 << 20, UsedBytes: 5 << 30, UtilizationPercent: 37,
		Slices: report.Slices{SliceBytes: 1 << 30, Total: 140, Taken: 10, Dormant: 3, Free: 130},
	}, r.GPUs[0])
	must.Eq(t, report.Slices{SliceBytes: 1 << 30, Total: 140, Outside: 3, Free: 137}, r.GPUs[1].Slices)
	must.Eq(t, "it fell off the bus", r.GPUs[2].Error)
	states := map[string]claim.State{}
	for _, c := range r.Claims {
		states[c.ID] = c.State
		must.NotNil(t, c.Usage, must.Sprint(c.ID))
	}
	must.Eq(t, map[string]claim.State{
		running.ID: claim.StateRunning, reserved.ID: claim.StateReserved, dormant.ID: claim.StateDormant,
	}, states)
	must.Eq(t, "alloc-1", r.Claims[0].Container.ID)
	must.Eq(t, 8<<30, r.Claims[0].Usage.LimitBytes)
	must.Len(t, 1, r.Problems)

	code, text, stderr := n.status()
	must.Eq(t, 0, code)
	must.Eq(t, "", stderr)
	for _, line := range [][]string{
		{"Driver 570.124.06, CUDA 12.8"},
		{"0 ", "NVIDIA H200", busy.UUID, "143771 MiB", "5120 MiB", "37%", "10 of 140 (1GiB each)", "130"},
		{"1 ", "NVIDIA H200", idle.UUID, "143771 MiB", "0 MiB", "?", "0 of 140", "137"},
		{"GPU 1: processes without a claim use the memory of 3 slices"},
		{"GPU 2: it fell off the bus"},
		{running.ID, "0-7", "8192 MiB", "0 MiB", "running", "nomad", "alloc-1 (runc)"},
		{reserved.ID, "8-9", "2048 MiB", "reserved", "nomad", "-"},
		{dormant.ID, "10-12", "dormant", "alloc-2"},
		{"notes.txt", "something else put it here"},
	} {
		must.True(t, words(text, line...), must.Sprintf("%q in\n%s", line, text))
	}
}

func TestStatusShowsHostMemory(t *testing.T) {
	n := newNode(t, nvmltest.New(nvmltest.H200(0)))
	allowed, none, broken := n.reserve(t, nvmltest.H200(0), 0, 0), n.reserve(t, nvmltest.H200(0), 1, 1), n.reserve(t, nvmltest.H200(0), 2, 2)
	for _, c := range []*claim.Claim{allowed, broken} {
		_, err := n.ledger.PrepareRegion(context.Background(), c.ID, "alloc-1", 4<<30)
		must.NoError(t, err)
	}
	must.NoError(t, os.Truncate(filepath.Join(n.runDir, "claims", broken.ID, region.UsageFile), 3))
	r := n.statusJSON(t, 0)
	must.Eq(t, 4<<30, r.Claims[0].GPUHostMemoryBytes)
	must.Eq(t, &region.Spill{LimitBytes: 4 << 30}, r.Claims[0].Usage.Spill)
	must.Nil(t, r.Claims[1].Usage.Spill)
	_, out, _ := n.status("--json")
	must.Eq(t, 2, strings.Count(out, `"gpu_host_memory_bytes": 4294967296`))
	must.Eq(t, 1, strings.Count(out, `"gpu_host_memory": {`))

	_, text, _ := n.status()
	must.StrContains(t, text, "HOST MEMORY")
	must.True(t, words(text, allowed.ID, "1024 MiB", "0 of 4096 MiB", "reserved"), must.Sprint(text))
	must.True(t, words(text, broken.ID, "1024 MiB", "? of 4096 MiB", "reserved"), must.Sprint(text))
	must.False(t, words(text, none.ID, " of "), must.Sprint(text))
}

// A container whose image has no glibc runs; why it finds no GPU is said under its claim, as long as it runs.
func TestStatusShowsWhatAnImageLacks(t *testing.T) {
	gpu := nvmltest.H200(0)
	n := newNode(t, nvmltest.New(gpu))
	made := n.reserve(t, gpu, 0, 7)
	init := n.bindLacking(t, made, "alloc-1", "the image has musl")
	must.Eq(t, "the image has musl", n.statusJSON(t, 0).Claims[0].Container.Lacks)
	_, text, _ := n.status()
	must.True(t, words(text, "claim "+made.ID+": container alloc-1: the image has musl"), must.Sprint(text))
	must.NoError(t, init.Process.Kill())
	_ = init.Wait()
	_, text, _ = n.status()
	must.StrNotContains(t, text, "musl")
}

func TestStatusWithoutNVML(t *testing.T) {
	n := newNode(t, nvml.New(t.TempDir()))
	c := n.reserve(t, nvmltest.H200(1), 3, 3)
	r := n.statusJSON(t, exitFailure) // a script must not take it for all that there is
	must.StrContains(t, r.NVMLError, "no libnvidia-ml.so.1")
	must.Len(t, 1, r.GPUs)
	must.Eq(t, c.GPU.UUID, r.GPUs[0].UUID)
	must.Eq(t, 1, r.GPUs[0].Slices.Taken)

	code, text, _ := n.status()
	must.Eq(t, exitFailure, code)
	must.StrContains(t, text, "run: tranche doctor")
	must.True(t, words(text, "NVML is not available", "no libnvidia-ml.so.1"))
	must.True(t, words(text, "1 ", "NVIDIA H200", c.GPU.UUID, "?", "?", "1 (1GiB each)"), must.Sprint(text))
	must.True(t, words(text, c.ID, "3", "1024 MiB", "reserved"))
}

func TestStatusOfAnEmptyNode(t *testing.T) {
	n := newNode(t, nvmltest.New())
	code, text, _ := n.status()
	must.Eq(t, 0, code)
	must.StrContains(t, text, "No GPUs.")
	must.StrContains(t, text, "No claims.")
	_, out, _ := n.status("--json")
	for _, field := range []string{`"gpus": []`, `"claims": []`, `"problems": []`} {
		must.StrContains(t, out, field)
	}
}

func TestStatusOfALedgerThatCannotBeRead(t *testing.T) {
	n := newNode(t, nvmltest.New(nvmltest.H200(0)))
	must.NoError(t, os.WriteFile(filepath.Join(n.stateDir, "claims"), nil, 0o600))
	r := n.statusJSON(t, exitFailure)
	must.StrContains(t, r.LedgerError, n.stateDir)
	must.Len(t, 1, r.GPUs)
	code, text, _ := n.status()
	must.Eq(t, exitFailure, code)
	must.StrContains(t, text, "The ledger cannot be read")
	must.True(t, words(text, "0 ", "NVIDIA H200"))
}

func TestStatusOfABrokenRegion(t *testing.T) {
	n := newNode(t, nvmltest.New(nvmltest.H200(0)))
	c := n.reserve(t, nvmltest.H200(0), 0, 0)
	must.NoError(t, os.Truncate(filepath.Join(n.runDir, "claims", c.ID, region.UsageFile), 3))
	r := n.statusJSON(t, 0)
	must.Nil(t, r.Claims[0].Usage)
	must.StrContains(t, r.Claims[0].UsageError, "3 bytes long")
	_, text, _ := n.status()
	must.True(t, words(text, "claim "+c.ID, "3 bytes long"))
}

func TestStatusShowsRuns(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only what root runs shows")
	}
	tr := newTrial(t)
	cmd, line := tr.start(t, `echo "$TRANCHE_REGIONS $$"; exec sleep 1000`)
	regions, after, _ := strings.Cut(line, " ")
	pid, err := strconv.Atoi(after)
	must.NoError(t, err)
	fake := nvmltest.New(nvmltest.H200(0), nvmltest.H200(1))
	fake.SetProcesses(nvmltest.H200(0).UUID, nvml.Process{PID: pid, UsedBytes: 1 << 30, UsedKnown: true})
	n := newNode(t, fake)
	n.runDir = tr.runDir
	r := n.statusJSON(t, 0)
	must.Len(t, 1, r.Claims)
	c := r.Claims[0]
	must.DirExists(t, filepath.Join(regions, c.ID))
	must.Eq(t, claim.OwnerRun, c.Owner)
	must.Eq(t, claim.StateRunning, c.State)
	must.Eq(t, "NVIDIA H200", c.GPU.Name)
	must.Eq(t, 1<<30, c.LimitBytes)
	must.Eq(t, 0, r.GPUs[0].Slices.Taken)
	must.Eq(t, 139, r.GPUs[0].Slices.Free, must.Sprint("it has no slices, and takes memory of some"))
	_, text, _ := n.claim("list")
	must.StrNotContains(t, text, c.ID, must.Sprint("it cannot be released"))

	must.NoError(t, cmd.Process.Signal(os.Interrupt))
	_ = cmd.Wait()
	must.SliceEmpty(t, n.statusJSON(t, 0).Claims)
}

// What a process names in its environment is no command under tranche run.
func TestStatus_CraftedEnvironment(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only what root runs shows")
	}
	tr := newTrial(t)
	tr.start(t, `echo; exec sleep 1000`)
	base, err := private.Base(tr.runDir, tr.environ)
	must.NoError(t, err)
	crafted := exec.Command("sleep", "1000")
	crafted.Env = []string{"A=" + base + "/..", "B=" + base + "/\x1b[2J", "C=" + base + "/none"}
	must.NoError(t, crafted.Start())
	t.Cleanup(func() { _ = crafted.Process.Kill(); _ = crafted.Wait() })
	n := newNode(t, nvmltest.New(nvmltest.H200(0)))
	n.runDir = tr.runDir
	must.Len(t, 1, n.statusJSON(t, 0).Claims)
}

// A damaged record does not control the terminal.
func TestStatus_HostileRecord(t *testing.T) {
	n := newNode(t, nvmltest.New(nvmltest.H200(0)))
	n.reserve(t, nvmltest.H200(0), 0, 0)
	record := filepath.Join(n.stateDir, "claims", "01234567.json")
	must.NoError(t, os.WriteFile(record, []byte(`{"tranche_claim": 1, "slices": ["a\u001b[2J", "b\nclaim 89abcdef: fake"`), 0o600))
	for _, show := range []func(...string) (int, string, string){n.status, func(...string) (int, string, string) { return n.claim("list") }} {
		_, text, _ := show()
		must.StrContains(t, text, `a\x1b[2J, b\nclaim 89abcdef: fake`)
		must.StrNotContains(t, text, "\x1b")
	}
	_, text, stderr := n.claim("release", "\x1b[2J")
	must.StrNotContains(t, text+stderr, "\x1b")
}

func TestStatusRefuses(t *testing.T) {
	n := newNode(t, nvmltest.New())
	code, _, stderr := n.status("--slice-memory", "lots")
	must.Eq(t, exitFailure, code)
	must.StrContains(t, stderr, `--slice-memory: "lots"`)
	code, _, stderr = n.status("extra")
	must.Eq(t, exitFailure, code)
	must.StrContains(t, stderr, "extra")
}

func TestVersion(t *testing.T) {
	a := testApp(nil)
	for _, args := range [][]string{{"version"}, {"--version"}} {
		a.stdout = new(bytes.Buffer)
		must.Eq(t, 0, a.main(args), must.Sprint(a.stderr))
		must.Eq(t, "v0.0.0-test\n", a.stdout.(*bytes.Buffer).String())
	}
	must.Eq(t, exitFailure, a.main([]string{"conjure"}))
	must.StrContains(t, a.stderr.(*bytes.Buffer).String(), "conjure")
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
