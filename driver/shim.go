package driver

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	taskv2 "github.com/containerd/containerd/api/runtime/task/v2"
	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/types/known/anypb"
)

// shimEndpoint is where a container's shim listens. A shim outlives containerd, and knows how its process ended; a
// containerd that starts again throws away shims whose process ended meanwhile (since 1.7), and the exit code with them.
// So while containerd is away the shim itself is asked.
type shimEndpoint struct {
	Address string `json:"address"`
	// Version is that of the task service: 2 up to containerd 1.7, 3 since.
	Version int `json:"version"`
}

// findShim returns the endpoint of the shim of a container by its first process, whose parent the shim is. Its working
// directory is the container's bundle, in which containerd keeps the address. A runtime that is built otherwise has none.
func findShim(pid uint32) (shimEndpoint, error) {
	parent, err := parentOf(pid)
	if err != nil {
		return shimEndpoint{}, err
	}
	bundle := fmt.Sprintf("/proc/%d/cwd", parent)
	if data, err := os.ReadFile(filepath.Join(bundle, "bootstrap.json")); err == nil {
		var endpoint shimEndpoint
		return endpoint, json.Unmarshal(data, &endpoint)
	}
	data, err := os.ReadFile(filepath.Join(bundle, "address"))
	return shimEndpoint{Address: string(data), Version: 2}, err
}

// parentOf reads a process's parent from /proc/PID/stat, whose second field may hold anything, blanks and brackets too.
func parentOf(pid uint32) (int, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(fields) < 2 {
		return 0, fmt.Errorf("/proc/%d/stat is of an unknown form", pid)
	}
	return strconv.Atoi(fields[1])
}

// shimExit is how a process ended, as its shim tells.
type shimExit struct {
	code     uint32
	at       time.Time
	oomKills uint64
}

// waitAtShim waits until the container's first process has ended.
func waitAtShim(ctx context.Context, endpoint shimEndpoint, container string) (shimExit, error) {
	path, ok := strings.CutPrefix(strings.TrimSpace(endpoint.Address), "unix://")
	if !ok {
		return shimExit{}, fmt.Errorf("the shim's address %q is no Unix socket", endpoint.Address)
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return shimExit{}, fmt.Errorf("connect to the shim: %w", err)
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	if endpoint.Version >= 3 {
		return waitV3(ctx, taskv3.NewTTRPCTaskClient(client), container)
	}
	return waitV2(ctx, taskv2.NewTTRPCTaskClient(client), container)
}

func waitV2(ctx context.Context, service taskv2.TTRPCTaskService, container string) (shimExit, error) {
	exit, err := service.Wait(ctx, &taskv2.WaitRequest{ID: container})
	if err != nil {
		return shimExit{}, err
	}
	stats, err := service.Stats(ctx, &taskv2.StatsRequest{ID: container})
	if err != nil {
		stats = nil
	}
	return newShimExit(exit.GetExitStatus(), exit.GetExitedAt().AsTime(), stats.GetStats()), nil
}

func waitV3(ctx context.Context, service taskv3.TTRPCTaskService, container string) (shimExit, error) {
	exit, err := service.Wait(ctx, &taskv3.WaitRequest{ID: container})
	if err != nil {
		return shimExit{}, err
	}
	stats, err := service.Stats(ctx, &taskv3.StatsRequest{ID: container})
	if err != nil {
		stats = nil
	}
	return newShimExit(exit.GetExitStatus(), exit.GetExitedAt().AsTime(), stats.GetStats()), nil
}

func newShimExit(code uint32, at time.Time, stats *anypb.Any) shimExit {
	exit := shimExit{code: code, at: at}
	if stats != nil {
		exit.oomKills = oomKills(stats)
	}
	return exit
}
