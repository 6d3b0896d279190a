package cli

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/tranche-gpu/tranche/governor"
)

type governorOptions struct {
	place
	logLevel string
}

func (a *app) governorCommand() *cobra.Command {
	var o governorOptions
	cmd := &cobra.Command{
		Use:   "governor",
		Short: "Give claims with a share of compute their turns on the GPUs",
		Long: `Give claims with a share of compute their turns on the GPUs.

One governor runs on a node. The device plugin starts it when a GPU has compute = "shares", unless systemd or somebody
else has. Without a governor, programs compute as they like; a governor that is started while they run takes over
within a second.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.govern(cmd.Context(), o) },
	}
	o.addFlags(cmd)
	cmd.Flags().StringVar(&o.logLevel, "log-level", "info", "`level` of the log: trace, debug, info, warn or error")
	return cmd
}

func (a *app) govern(ctx context.Context, o governorOptions) error {
	level := hclog.LevelFromString(o.logLevel)
	if level == hclog.NoLevel {
		return fmt.Errorf("--log-level must be trace, debug, info, warn or error, got %q", o.logLevel)
	}
	for flag, dir := range map[string]string{"--run-dir": o.runDir, "--state-dir": o.stateDir, "--driver-root": o.driverRoot} {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("%s must be an absolute path, got %q", flag, dir)
		}
	}
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	driver := a.openNVML(o.driverRoot)
	return governor.Run(ctx, governor.Options{
		StateDir: o.stateDir, RunDir: o.runDir,
		Logger: hclog.New(&hclog.LoggerOptions{Name: "governor", Level: level, Output: a.stderr}),
		Ready:  notifyReady,
		Processes: func(ctx context.Context, gpuUUID string) ([]int, error) {
			ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
			defer cancel()
			processes, err := driver.Processes(ctx, gpuUUID)
			var pids []int
			for _, p := range processes {
				pids = append(pids, p.PID)
			}
			return pids, err
		},
	})
}

// notifyReady tells systemd that the service has started (sd_notify(3)), if that has started it.
func notifyReady() {
	socket := os.Getenv("NOTIFY_SOCKET")
	if socket == "" {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = conn.Write([]byte("READY=1"))
}
