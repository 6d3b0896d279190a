package device

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/device/proto"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/region"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
)

// BenchmarkStats is what statistics cost of a node with 8 GPUs of 141 slices: made, and made and sent to Nomad.
func BenchmarkStats(b *testing.B) {
	for _, claims := range []int{0, 100} {
		p := busyNode(b, 8, claims)
		b.Run(fmt.Sprintf("made/claims=%d", claims), func(b *testing.B) {
			n := p.node.Load()
			countCPU(b, func() { n.stats.collect(b.Context(), time.Now()) })
		})
		b.Run(fmt.Sprintf("sent/claims=%d", claims), func(b *testing.B) {
			stream := statsMessages(b, p)
			var message unread
			must.NoError(b, stream.RecvMsg(&message))
			countCPU(b, func() { must.NoError(b, stream.RecvMsg(&message)) })
			b.ReportMetric(float64(message), "bytes/message")
		})
	}
}

// countCPU reports the processor time of the process for each call.
func countCPU(b *testing.B, tick func()) {
	b.Helper()
	before := cpuTime(b)
	for b.Loop() {
		tick()
	}
	b.ReportMetric(float64((cpuTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/tick")
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var usage unix.Rusage
	must.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// busyNode is a plugin whose GPUs have so many claims of containers that run, each of one slice.
func busyNode(b *testing.B, gpus, claims int) *Plugin {
	b.Helper()
	var found []nvml.GPU
	fake := nvmltest.New()
	for i := range gpus {
		g := nvmltest.H200(i)
		g.MemoryBytes = 141 << 30
		found = append(found, g)
		number := func(n int64) *int64 { return &n }
		fake.SetTelemetry(g.UUID, nvml.Telemetry{
			PowerMilliwatts: number(345_600), PowerLimitMilliwatts: number(700_000), TemperatureCelsius: number(55),
			GPUPercent: number(42), MemoryPercent: number(17), UsedBytes: number(5000 << 20), MemoryBytes: number(143771 << 20),
			BAR1UsedBytes: number(3 << 20), BAR1Bytes: number(256 << 30), EncoderPercent: number(0), DecoderPercent: number(0),
			Corrected: &nvml.CorrectedErrors{L1Cache: 1, L2Cache: 2, Memory: 3},
		})
	}
	fake.SetGPUs(found...)
	p := New(hclog.NewNullLogger(), "v0.0.1")
	p.newNVML = func(string) nvml.Interface { return fake }
	must.NoError(b, p.SetConfig(pluginConfig(b, testOptions(b, map[string]any{"context_memory": "300MiB"}))))
	n := p.node.Load()
	must.NoError(b, n.scanner.scan(b.Context()))
	for i := range claims {
		made, _, err := n.ledger.Reserve(b.Context(), claim.Request{
			GPU: claim.GPU{UUID: found[i%gpus].UUID}, Slices: sliceIDs(found[i%gpus], i/gpus), LimitBytes: 1 << 30, SliceBytes: 1 << 30,
			Owner: claim.OwnerNomad,
		})
		must.NoError(b, err)
		dir, err := n.ledger.PrepareRegion(b.Context(), made.ID, fmt.Sprint(i), 0)
		must.NoError(b, err)
		must.NoError(b, n.ledger.Bind(b.Context(), made.ID, claim.Container{Runtime: "bench", ID: fmt.Sprint(i), InitPID: os.Getpid()}))
		lockRegion(b, dir)
	}
	dir, err := n.ledger.WatchDir()
	must.NoError(b, err)
	must.NoError(b, os.Chtimes(dir, time.Time{}, time.Now().Add(-time.Minute))) // the claims are not new
	return p
}

// lockRegion makes a region look as if a process used it, which is when its slots are looked at.
func lockRegion(b *testing.B, dir string) {
	b.Helper()
	f, err := os.OpenFile(filepath.Join(dir, region.UsageFile), os.O_RDWR, 0)
	must.NoError(b, err)
	b.Cleanup(func() { f.Close() })
	must.NoError(b, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}))
}

// statsMessages are the statistics as they go to Nomad by gRPC. They are received, but what Nomad makes of them is no
// cost of the plugin's.
func statsMessages(b *testing.B, p *Plugin) grpc.ClientStream {
	b.Helper()
	listener, err := net.Listen("unix", filepath.Join(b.TempDir(), "plugin.sock"))
	must.NoError(b, err)
	server := grpc.NewServer()
	must.NoError(b, (&ndevice.PluginDevice{Impl: p}).GRPCServer(nil, server))
	go func() { _ = server.Serve(listener) }()
	b.Cleanup(server.Stop)
	connection, err := grpc.NewClient("unix:"+listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must.NoError(b, err)
	b.Cleanup(func() { connection.Close() })
	stream, err := connection.NewStream(b.Context(), &grpc.StreamDesc{ServerStreams: true},
		"/hashicorp.nomad.plugins.device.DevicePlugin/Stats", grpc.ForceCodec(unreadCodec{}))
	must.NoError(b, err)
	must.NoError(b, stream.SendMsg(&proto.StatsRequest{CollectionInterval: durationpb.New(time.Nanosecond)}))
	must.NoError(b, stream.CloseSend())
	return stream
}

// unread is a message of which only the length is known.
type unread int

// unreadCodec reads no messages.
type unreadCodec struct{}

func (unreadCodec) Name() string { return "proto" }

func (unreadCodec) Marshal(message any) ([]byte, error) {
	return protobuf.Marshal(protoadapt.MessageV2Of(message.(protoadapt.MessageV1)))
}

func (unreadCodec) Unmarshal(content []byte, message any) error {
	*message.(*unread) = unread(len(content))
	return nil
}
