package device

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/device/contextcost"
	"github.com/tranche-gpu/tranche/device/mps"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
)

// servePlugin makes the test binary the plugin's own.
const servePlugin = "TRANCHE_TEST_SERVE_DEVICE_PLUGIN"

func TestMain(m *testing.M) {
	contextcost.ChildMain()
	mps.ChildMain()
	simChildMain()
	if os.Getenv(servePlugin) != "" {
		ndevice.Serve(New(hclog.Default(), "v0.0.1"), hclog.Default())
		return
	}
	os.Exit(m.Run())
}

const (
	mebi = uint64(1) << 20
	// patience is how long a test waits for what should happen at once.
	patience = time.Minute
)

// pluginConfig is what Nomad sends: the options that are set, and the defaults
// of the others as the schema states them.
func pluginConfig(t testing.TB, options map[string]any) *base.Config {
	t.Helper()
	all := make(map[string]any)
	for name, spec := range configSpec.GetObject().Attributes {
		if spec.GetDefault() == nil {
			continue
		}
		var value any
		must.NoError(t, json.Unmarshal([]byte(spec.GetDefault().Default.GetLiteral().Value), &value))
		if number, ok := value.(float64); ok {
			value = int(number) // as Nomad sends whole numbers
		}
		all[name] = value
	}
	for name, value := range options {
		_, known := configSpec.GetObject().Attributes[name]
		must.True(t, known, must.Sprintf("the schema has no option %s", name))
		all[name] = value
	}
	var encoded []byte
	must.NoError(t, base.MsgPackEncode(&encoded, all))
	return &base.Config{PluginConfig: encoded}
}

// testOptions keep a plugin within the test's own directories.
func testOptions(t testing.TB, options map[string]any) map[string]any {
	t.Helper()
	all := map[string]any{
		"state_dir":          t.TempDir(),
		"run_dir":            t.TempDir(),
		"driver_root":        t.TempDir(),
		"context_memory":     "300MiB",
		"fingerprint_period": "100ms",
	}
	maps.Copy(all, options)
	return all
}

// newPlugin returns a configured plugin whose GPUs are the fake's.
func newPlugin(t *testing.T, fake nvml.Interface, options map[string]any) *Plugin {
	t.Helper()
	p := New(hclog.NewNullLogger(), "v0.0.1")
	p.newNVML = func(string) nvml.Interface { return fake }
	must.NoError(t, p.SetConfig(pluginConfig(t, testOptions(t, options))))
	return p
}

// fingerprint starts the fingerprint of a plugin, and ends it before the test's
// directories go.
func fingerprint(t *testing.T, p ndevice.DevicePlugin) <-chan *ndevice.FingerprintResponse {
	t.Helper()
	stream, err := p.Fingerprint(t.Context())
	must.NoError(t, err)
	t.Cleanup(func() { drain(stream) })
	return stream
}

// fingerprintOnce returns the first message of a fingerprint, and ends it, as an agent that is restarted does.
func fingerprintOnce(t *testing.T, p ndevice.DevicePlugin) *ndevice.FingerprintResponse {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := p.Fingerprint(ctx)
	must.NoError(t, err)
	first := next(t, stream)
	cancel()
	drain(stream)
	return first
}

// stats is fingerprint for statistics.
func stats(t *testing.T, p ndevice.DevicePlugin, interval time.Duration) <-chan *ndevice.StatsResponse {
	t.Helper()
	stream, err := p.Stats(t.Context(), interval)
	must.NoError(t, err)
	t.Cleanup(func() { drain(stream) })
	return stream
}

// drain waits for the end of a stream whose context has ended.
func drain[T any](stream <-chan T) {
	for range stream {
	}
}

// next returns the next message of a stream.
func next[T any](t *testing.T, stream <-chan T) T {
	t.Helper()
	select {
	case message, ok := <-stream:
		must.True(t, ok, must.Sprint("the stream has ended"))
		return message
	case <-time.After(patience):
		t.Fatal("no message came")
		panic("unreachable")
	}
}

// quiet fails the test if a message comes within a few fingerprint periods.
func quiet[T any](t *testing.T, stream <-chan T) {
	t.Helper()
	select {
	case message := <-stream:
		t.Fatalf("a message without a change: %+v", message)
	case <-time.After(500 * time.Millisecond):
	}
}

// sliceIDs names slices of a GPU.
func sliceIDs(g nvml.GPU, numbers ...int) []string {
	ids := make([]string, 0, len(numbers))
	for _, number := range numbers {
		ids = append(ids, fmt.Sprintf("%s/slice-%03d", g.UUID, number))
	}
	return ids
}

func TestPlugin_PluginInfo(t *testing.T) {
	info, err := New(hclog.NewNullLogger(), "v1.2.3").PluginInfo()
	must.NoError(t, err)
	must.Eq(t, &base.PluginInfoResponse{
		Type: base.PluginTypeDevice, PluginApiVersions: []string{"v0.1.0"},
		PluginVersion: "v1.2.3", Name: "nomad-device-tranche",
	}, info)
}

func TestPlugin_disabled(t *testing.T) {
	p := newPlugin(t, nvmltest.New(), map[string]any{"enabled": false})
	_, err := p.Fingerprint(t.Context())
	must.ErrorIs(t, err, ndevice.ErrPluginDisabled)
}

// contextWithCancel is cancelled when the test says so, or ends.
func contextWithCancel(t *testing.T) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	return ctx, cancel
}
