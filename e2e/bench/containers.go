package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// containerWays are the ways to make a container: by runc alone; by tranche-runtime, without and with a claim; and by
// NVIDIA's runtime for a container that asks for no GPU, where it is installed.
func containerWays() []string {
	ways := []string{"bare", "tranche-no-claim", "tranche"}
	if _, err := exec.LookPath(nvidiaRuntime); err == nil {
		ways = append(ways, nvidiaRuntime)
	}
	return ways
}

const nvidiaRuntime = "nvidia-container-runtime"

// containerTimes are the milliseconds that one container took: `create`, and from its beginning to the return of `start`;
// and the processor time of `create`, with the container's first process and all the hooks, which other load on the machine
// changes little.
type containerTimes struct{ create, start, createCPU float64 }

// containers measures containers of each way, in turns.
func (b *bench) containers(ctx context.Context, count int) ([]result, error) {
	config, err := b.runtimeConfig(ctx)
	if err != nil {
		return nil, err
	}
	ledger, err := claim.Open(claim.Options{StateDir: filepath.Join(b.dir, "state"), RunDir: filepath.Join(b.dir, "tranche")})
	if err != nil {
		return nil, err
	}
	fmt.Printf("==> containers, %d of each variant\n", count)
	// So that the containers' first processes, which the OCI runtimes leave behind, are this one's to wait for.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, err
	}
	defer unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) //nolint:errcheck // it could be set
	samples := map[string]map[string][]float64{"create": {}, "create-cpu": {}, "create-to-start": {}}
	for i := range count + 1 {
		for _, way := range containerWays() {
			took, err := b.container(ctx, ledger, config, way, fmt.Sprintf("bench-%s-%d", way, i))
			if err != nil {
				return nil, fmt.Errorf("container of the variant %s: %w", way, err)
			}
			if i == 0 {
				continue // it finds no kept CDI specification, and cold caches
			}
			for benchmark, sample := range map[string]float64{
				"create": took.create, "create-cpu": took.createCPU, "create-to-start": took.start,
			} {
				samples[benchmark][way] = append(samples[benchmark][way], sample)
			}
		}
	}
	var results []result
	for _, benchmark := range []string{"create", "create-cpu", "create-to-start"} {
		results = append(results, containerResults(benchmark, samples[benchmark])...)
	}
	return results, nil
}

func containerResults(benchmark string, samples map[string][]float64) []result {
	var results []result
	for _, way := range containerWays() {
		r := result{benchmark: benchmark, variant: way, threads: 1, unit: "ms"}
		r.median, r.p99 = medianOf(samples[way])
		results = append(results, r)
	}
	return results
}

// runtimeConfig writes the configuration of tranche-runtime for this run.
func (b *bench) runtimeConfig(ctx context.Context) (string, error) {
	cli, err := b.sim.CLI(b.build, b.dir)
	if err != nil {
		return "", err
	}
	shadows, err := b.strippedShadows(ctx)
	if err != nil {
		return "", err
	}
	path := filepath.Join(b.dir, "config.toml")
	text := fmt.Sprintf("driver_root = %q\nshadow_dir = %q\nhook_path = %q\ncli_path = %q\nstate_dir = %q\nrun_dir = %q\nruntime = \"runc\"\n",
		b.sim.Root, shadows, filepath.Join(b.build, "bin/tranche-hook"), cli,
		filepath.Join(b.dir, "state"), filepath.Join(b.dir, "tranche"))
	return path, os.WriteFile(path, []byte(text), 0o644)
}

// strippedShadows returns a directory with the shadow libraries as packages install them: without debugging information, since
// each container gets copies of them.
func (b *bench) strippedShadows(ctx context.Context) (string, error) {
	dir := filepath.Join(b.dir, "lib")
	for _, file := range shadow.Files() {
		stripped := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(stripped), 0o755); err != nil {
			return "", err
		}
		strip := exec.CommandContext(ctx, "strip", "--strip-debug", "-o", stripped, filepath.Join(b.build, "lib", file))
		if output, err := strip.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%v: %w: %s", strip.Args, err, output)
		}
	}
	return dir, nil
}

// container makes one container and measures how long it takes to start it.
func (b *bench) container(ctx context.Context, ledger *claim.Ledger, config, way, id string) (containerTimes, error) {
	var took containerTimes
	bundle := filepath.Join(b.dir, id)
	environment, err := b.claimFor(ctx, ledger, way)
	if err != nil {
		return took, err
	}
	if err := writeBundle(bundle, environment); err != nil {
		return took, err
	}
	runtime := map[string]string{"bare": "runc", nvidiaRuntime: nvidiaRuntime}[way]
	if runtime == "" {
		runtime = filepath.Join(b.build, "bin/tranche-runtime")
	}
	began := time.Now()
	var cpu time.Duration
	call := func(args ...string) (float64, error) {
		cmd := exec.CommandContext(ctx, runtime, append([]string{"--root", filepath.Join(b.dir, "runc")}, args...)...)
		cmd.Env = append(os.Environ(), "TRANCHE_CONFIG="+config)
		cmd.Stderr = os.Stderr
		err := cmd.Run()
		cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		return milliseconds(time.Since(began)), err
	}
	pidFile := filepath.Join(bundle, "pid")
	if took.create, err = call("create", "--bundle", bundle, "--pid-file", pidFile, id); err != nil {
		return took, err
	}
	createCPU := cpu
	if took.start, err = call("start", id); err != nil {
		return took, err
	}
	if _, err := call("delete", "--force", id); err != nil {
		return took, err
	}
	initCPU, err := waitFor(pidFile)
	if err != nil {
		return took, err
	}
	took.createCPU = milliseconds(createCPU + initCPU)
	return took, os.RemoveAll(bundle)
}

// waitFor waits for the process of a file, and returns its processor time with that of the hooks that it ran.
func waitFor(pidFile string) (time.Duration, error) {
	text, err := os.ReadFile(pidFile)
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(string(text))
	if err != nil {
		return 0, err
	}
	var used unix.Rusage
	_, err = unix.Wait4(pid, nil, 0, &used)
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()), err
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// claimFor makes a claim, where the way calls for one, and returns the variable that names it.
func (b *bench) claimFor(ctx context.Context, ledger *claim.Ledger, way string) ([]string, error) {
	if way != "tranche" {
		return nil, nil
	}
	record, err := b.sim.Record(ctx)
	if err != nil {
		return nil, err
	}
	uuid := record.GPUs[0].UUID
	_, token, err := ledger.Reserve(ctx, claim.Request{
		GPU:    claim.GPU{UUID: uuid, Name: record.GPUs[0].Name, ContextBytes: 300 << 20},
		Slices: []string{uuid + "/slice-000"}, LimitBytes: 1 << 30, Owner: "bench",
	})
	if err != nil {
		return nil, err
	}
	return []string{token.EnvName() + "=" + token.Reveal()}, nil
}

// writeBundle writes an OCI bundle whose only program is busybox.
func writeBundle(dir string, environment []string) error {
	root := filepath.Join(dir, "rootfs")
	for _, d := range []string{"bin", "proc", "dev", "sys"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return err
		}
	}
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, "bin/busybox"), busybox, 0o755); err != nil {
		return err
	}
	spec := &specs.Spec{
		Version: "1.0.2",
		Root:    &specs.Root{Path: "rootfs"},
		Process: &specs.Process{
			Args: []string{"/bin/busybox", "sleep", "1000"}, Cwd: "/",
			Env: append([]string{"PATH=/bin"}, environment...),
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
		},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: "pid"}, {Type: "mount"}, {Type: "ipc"}, {Type: "uts"}}},
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), text, 0o644)
}
