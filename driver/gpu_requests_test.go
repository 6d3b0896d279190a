package driver

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/driver/naming"
	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/runtime/request"
)

// requestingImage is an image that requests GPU memory by its own ENV in every way.
func (d *testDriver) requestingImage() string {
	d.t.Helper()
	return d.node.push(d.t, "asking:1", func(c *v1.Config) {
		c.Env = append(c.Env, request.MemoryEnv+"=8GiB", request.GPUEnv+"=0", "TRANCHE_CDI_SLICE_8GiB=8GiB", request.ComputeEnv+"=",
			"GREETING=hello")
	})
}

// requestsNothing asserts that neither the task's processes nor its spec, as the runtime has read it, hold what an image requests.
func (d *testDriver) requestsNothing(cfg *drivers.TaskConfig, env string) {
	d.t.Helper()
	must.StrContains(d.t, env, "GREETING=hello\n")
	container, err := d.client.LoadContainer(d.ctx, naming.ContainerID(cfg))
	must.NoError(d.t, err)
	spec, err := container.Spec(d.ctx)
	must.NoError(d.t, err)
	bundled := d.bundledSpec(cfg)
	must.Eq(d.t, spec.Process.Env, bundled.Process.Env)
	for _, entry := range append(strings.Split(env, "\n"), bundled.Process.Env...) {
		name, _, _ := strings.Cut(entry, "=")
		must.False(d.t, request.IsVariable(name), must.Sprint(entry))
	}
	must.SliceContains(d.t, bundled.Process.Env, noVisibleDevices)
}

// bundledSpec is the spec of a task that runs, from the file of it that its runtime was given.
func (d *testDriver) bundledSpec(cfg *drivers.TaskConfig) *specs.Spec {
	d.t.Helper()
	files, err := filepath.Glob(filepath.Join(d.node.containerd.Dir, "state", "io.containerd.runtime.v2.task", "*", naming.ContainerID(cfg),
		"config.json"))
	must.NoError(d.t, err)
	must.Len(d.t, 1, files)
	data, err := os.ReadFile(files[0])
	must.NoError(d.t, err)
	var spec specs.Spec
	must.NoError(d.t, json.Unmarshal(data, &spec))
	return &spec
}

const showEnv = "env; echo end; sleep 1000"

func TestGPU_RequestsInARealContainer(t *testing.T) {
	d := newTestDriver(t)
	image := d.requestingImage()
	const event = "The image requests GPU memory by its TRANCHE_CDI_SLICE_8GiB and TRANCHE_GPU and TRANCHE_GPU_MEMORY"
	cfg := d.task(showEnv, func(c *spec.TaskConfig) { c.Image = image })
	cfg.Env[request.MemoryEnv] = "" // takes back what the image requests, and is no request
	d.start(cfg)
	d.requestsNothing(cfg, d.stdout(cfg, "end\n"))
	eventually(t, "the event", func() bool { return d.events.said(event) == 1 })

	asking := d.failing(func(c *spec.TaskConfig) { c.Image = image })
	asking.Env[request.MemoryEnv] = "4GiB"
	_, _, err := d.StartTask(asking)
	must.ErrorContains(t, err, `TRANCHE_GPU_MEMORY = "4GiB"`)
	must.ErrorContains(t, err, `device "nvidia/slice"`)
	d.nothingLeft(asking)
}

// With a device block the same image gets what the block says, and only that.
func TestGPU_RequestingImageWithADeviceBlock(t *testing.T) {
	var claims testClaims
	d, _ := newLenientDriver(t, func(c *spec.Config) {
		c.Namespace = "nomad-asks"
		claims = newTestClaims(t, c)
	})
	cfg := d.task("ls /.tranche/claims; "+showEnv, func(c *spec.TaskConfig) { c.Image = d.requestingImage() })
	claims.reserve(t, cfg)
	made, _, err := claims.List(t.Context())
	must.NoError(t, err)
	must.Len(t, 1, made)
	d.start(cfg)
	env := d.stdout(cfg, "end\n")
	must.StrContains(t, env, made[0].ID)
	must.StrNotContains(t, env, claim.EnvPrefix)
	d.requestsNothing(cfg, env)
	eventually(t, "the event", func() bool { return d.events.said("GPU memory: 1GiB") == 1 })
	must.Zero(t, d.events.said("The image asks"))
}
