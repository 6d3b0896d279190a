package task

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	taskv2 "github.com/containerd/containerd/api/runtime/task/v2"
	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/tranche-gpu/tranche/internal/proc"
)

// ShimEndpoint is where a container's shim listens. A shim outlives containerd, and knows how its process ended; a
// containerd that starts again removes shims whose process ended meanwhile (since 1.7), and the exit code with them.
// So while containerd is unavailable the shim itself is queried.
type ShimEndpoint struct {
	Address string `json:"address"`
	// Version is that of the task service: 2 up to containerd 1.7, 3 since.
	Version int `json:"version"`
}

// findShim returns the shim of a container, and where it listens, by the container's first process, whose parent is the
// shim. Its working directory is the container's bundle, in which containerd keeps the address. Runtimes that are built
// otherwise have none.
func findShim(pid int) (proc.ID, ShimEndpoint, error) {
	parent, err := proc.Parent(pid)
	if err != nil {
		return proc.ID{}, ShimEndpoint{}, err
	}
	endpoint, err := readEndpoint(fmt.Sprintf("/proc/%d/cwd", parent))
	if err != nil {
		return proc.ID{}, ShimEndpoint{}, err
	}
	shim, err := proc.Find(parent)
	return shim, endpoint, err
}

func readEndpoint(bundle string) (endpoint ShimEndpoint, err error) {
	if data, err := os.ReadFile(filepath.Join(bundle, "bootstrap.json")); err == nil {
		err = json.Unmarshal(data, &endpoint)
		return endpoint, err
	}
	data, err := os.ReadFile(filepath.Join(bundle, "address"))
	return ShimEndpoint{Address: string(data), Version: 2}, err
}

// connect connects to the shim. The caller closes the client.
func (e ShimEndpoint) connect(ctx context.Context) (*ttrpc.Client, error) {
	path, ok := strings.CutPrefix(strings.TrimSpace(e.Address), "unix://")
	if !ok {
		return nil, fmt.Errorf("the shim's address %q is no Unix socket", e.Address)
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("connect to the shim: %w", err)
	}
	return ttrpc.NewClient(conn), nil
}

// killAtShim has the shim send a signal to the container's first process, or to all of them. It is not an error if they have
// ended.
func killAtShim(ctx context.Context, endpoint ShimEndpoint, container string, signal syscall.Signal, all bool) error {
	client, err := endpoint.connect(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	number := uint32(signal)
	if endpoint.Version >= 3 {
		_, err = taskv3.NewTTRPCTaskClient(client).Kill(ctx, &taskv3.KillRequest{ID: container, Signal: number, All: all})
	} else {
		_, err = taskv2.NewTTRPCTaskClient(client).Kill(ctx, &taskv2.KillRequest{ID: container, Signal: number, All: all})
	}
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}

// waitAtShim blocks until the container's first process has ended.
func waitAtShim(ctx context.Context, endpoint ShimEndpoint, container string) (exitNotice, error) {
	client, err := endpoint.connect(ctx)
	if err != nil {
		return exitNotice{}, err
	}
	defer client.Close()
	if endpoint.Version >= 3 {
		return waitV3(ctx, taskv3.NewTTRPCTaskClient(client), container)
	}
	return waitV2(ctx, taskv2.NewTTRPCTaskClient(client), container)
}

func waitV2(ctx context.Context, service taskv2.TTRPCTaskService, container string) (exitNotice, error) {
	exit, err := service.Wait(ctx, &taskv2.WaitRequest{ID: container})
	if err != nil {
		return exitNotice{}, err
	}
	stats, err := service.Stats(ctx, &taskv2.StatsRequest{ID: container})
	if err != nil {
		stats = nil
	}
	return newExitNotice(exit.GetExitStatus(), exit.GetExitedAt().AsTime(), stats.GetStats()), nil
}

func waitV3(ctx context.Context, service taskv3.TTRPCTaskService, container string) (exitNotice, error) {
	exit, err := service.Wait(ctx, &taskv3.WaitRequest{ID: container})
	if err != nil {
		return exitNotice{}, err
	}
	stats, err := service.Stats(ctx, &taskv3.StatsRequest{ID: container})
	if err != nil {
		stats = nil
	}
	return newExitNotice(exit.GetExitStatus(), exit.GetExitedAt().AsTime(), stats.GetStats()), nil
}

func newExitNotice(code uint32, at time.Time, stats *anypb.Any) exitNotice {
	notice := exitNotice{code: code, at: at}
	if stats != nil {
		notice.oomKills = oomKills(stats)
	}
	return notice
}
