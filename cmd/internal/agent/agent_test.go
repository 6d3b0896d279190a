package agent

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/tranche-gpu/tranche/cmd/internal/agent/agenttest"
)

const (
	patienceEnv = "TRANCHE_TEST_PATIENCE"
	socketEnv   = "TRANCHE_TEST_SOCKET"
)

func TestMain(m *testing.M) {
	if agenttest.IsPlugin() {
		serve()
		return
	}
	os.Exit(m.Run())
}

// serve is a plugin that does nothing.
func serve() {
	listener, err := net.Listen("unix", os.Getenv(socketEnv))
	if err != nil {
		panic(err)
	}
	patience, err := time.ParseDuration(os.Getenv(patienceEnv))
	if err != nil {
		panic(err)
	}
	watch := NewWatch()
	server := grpc.NewServer(grpc.StatsHandler(watch))
	go func() { _ = server.Serve(listener) }()
	fmt.Printf("1|2|unix|%s|grpc\n", os.Getenv(socketEnv))
	watch.Gone(patience)
}

func start(t *testing.T, patience time.Duration) *agenttest.Plugin {
	t.Helper()
	dir, err := os.MkdirTemp("", "agent")
	must.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return agenttest.Start(t, patienceEnv+"="+patience.String(), socketEnv+"="+filepath.Join(dir, "socket"))
}

// connect is what an agent does, the first time and when it comes back. Whether the method is there does not matter.
func connect(t *testing.T, p *agenttest.Plugin, method string) (disconnect func()) {
	t.Helper()
	connection, err := grpc.NewClient(p.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must.NoError(t, err)
	err = connection.Invoke(t.Context(), "/plugin/"+method, &emptypb.Empty{}, &emptypb.Empty{})
	must.ErrorContains(t, err, "Unimplemented")
	return func() { must.NoError(t, connection.Close()) }
}

// Without a configuration there is nobody who knows the plugin.
func TestWatch_NeverConfigured(t *testing.T) {
	p := start(t, time.Hour)
	connect(t, p, "PluginInfo")()
	p.Lives(t)
	p.KillAgent(t)
	p.Ends(t)
}

// A plugin that was configured waits for the next agent, and for the one after that.
func TestWatch_Reattached(t *testing.T) {
	p := start(t, time.Hour)
	disconnect := connect(t, p, "SetConfig")
	p.KillAgent(t)
	disconnect()
	connect(t, p, "PluginInfo")()
	disconnect = connect(t, p, "PluginInfo")
	p.Lives(t)
	disconnect()
}

// It ends when none has come in time, and not while there is one.
func TestWatch_NotReattached(t *testing.T) {
	p := start(t, 50*time.Millisecond)
	disconnect := connect(t, p, "SetConfig")
	p.KillAgent(t)
	again := connect(t, p, "PluginInfo")
	disconnect()
	connect(t, p, "PluginInfo")()
	p.Lives(t)
	again()
	p.Ends(t)
}

// An agent that ended before its plugin looked has left its end of the plugin's output.
func TestUnread(t *testing.T) {
	reader, writer, err := os.Pipe()
	must.NoError(t, err)
	defer writer.Close()
	must.False(t, unread(int(writer.Fd())))
	must.NoError(t, reader.Close())
	must.True(t, unread(int(writer.Fd())))
}
