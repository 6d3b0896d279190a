package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"tranche.dev/tranche/claim"
)

// containers measures the time from `create` to the return of `start`, through runc alone, through tranche-runtime
// for a container without a claim, and for one with a claim.
func (b *bench) containers(ctx context.Context, count int) ([]result, error) {
	config, err := b.runtimeConfig()
	if err != nil {
		return nil, err
	}
	ledger, err := claim.Open(claim.Options{StateDir: filepath.Join(b.dir, "state"), RunDir: filepath.Join(b.dir, "tranche")})
	if err != nil {
		return nil, err
	}
	fmt.Printf("==> containers, %d of each variant\n", count)
	samples := map[string][]float64{}
	variants := []string{"bare", "tranche-no-claim", "tranche"}
	for i := range count {
		for _, variant := range variants {
			took, err := b.container(ctx, ledger, config, variant, fmt.Sprintf("bench-%s-%d", variant, i))
			if err != nil {
				return nil, fmt.Errorf("container of the variant %s: %w", variant, err)
			}
			samples[variant] = append(samples[variant], float64(took.Microseconds())/1000)
		}
	}
	var results []result
	for _, variant := range variants {
		r := result{benchmark: "create-to-start", variant: variant, threads: 1, unit: "ms"}
		r.median, r.p99 = medianOf(samples[variant])
		results = append(results, r)
	}
	return results, nil
}

// runtimeConfig writes the configuration of tranche-runtime for this run.
func (b *bench) runtimeConfig() (string, error) {
	cli, err := b.sim.CLI(b.build, b.dir)
	if err != nil {
		return "", err
	}
	path := filepath.Join(b.dir, "config.toml")
	text := fmt.Sprintf("driver_root = %q\nshadow_dir = %q\nhook_path = %q\ncli_path = %q\nstate_dir = %q\nrun_dir = %q\nruntime = \"runc\"\n",
		b.sim.Root, filepath.Join(b.build, "lib"), filepath.Join(b.build, "bin/tranche-hook"), cli,
		filepath.Join(b.dir, "state"), filepath.Join(b.dir, "tranche"))
	return path, os.WriteFile(path, []byte(text), 0o644)
}

// container makes one container and measures how long it takes to start it.
func (b *bench) container(ctx context.Context, ledger *claim.Ledger, config, variant, id string) (time.Duration, error) {
	bundle := filepath.Join(b.dir, id)
	var environment []string
	if variant == "tranche" {
		record, err := b.sim.Record(ctx)
		if err != nil {
			return 0, err
		}
		uuid := record.GPUs[0].UUID
		_, token, err := ledger.Reserve(ctx, claim.Request{
			GPU:    claim.GPU{UUID: uuid, Name: record.GPUs[0].Name, ContextBytes: 300 << 20},
			Slices: []string{uuid + "/slice-000"}, LimitBytes: 1 << 30, Owner: "bench",
		})
		if err != nil {
			return 0, err
		}
		environment = append(environment, token.EnvName()+"="+token.Reveal())
	}
	if err := writeBundle(bundle, environment); err != nil {
		return 0, err
	}
	runtime := filepath.Join(b.build, "bin/tranche-runtime")
	if variant == "bare" {
		runtime = "runc"
	}
	call := func(args ...string) error {
		cmd := exec.CommandContext(ctx, runtime, append([]string{"--root", filepath.Join(b.dir, "runc")}, args...)...)
		cmd.Env = append(append(os.Environ(), "TRANCHE_CONFIG="+config), b.sim.Env()...)
		cmd.Stderr = os.Stderr
		return cmd.Run()
	}
	began := time.Now()
	if err := call("create", "--bundle", bundle, id); err != nil {
		return 0, err
	}
	if err := call("start", id); err != nil {
		return 0, err
	}
	took := time.Since(began)
	if err := call("delete", "--force", id); err != nil {
		return 0, err
	}
	return took, os.RemoveAll(bundle)
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
