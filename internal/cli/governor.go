package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/tranche-gpu/tranche/governor"
	"github.com/tranche-gpu/tranche/governor/keeper"
)

type governorOptions struct {
	place
	logLevel string
}

func (a *app) governorCommand() *cobra.Command {
	var o governorOptions
	cmd := &cobra.Command{
		Use:   "governor",
		Short: "Grant turns on the GPUs to claims with compute shares",
		Long: `Grant turns on the GPUs to claims with compute shares.

One governor runs on a node. The device plugin starts it when a GPU has compute = "shares", unless it runs already, for
example by systemd. Without a governor shares do not hold. A governor that starts later takes over within a second.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.govern(cmd.Context(), o) },
	}
	o.addFlags(cmd)
	addLogLevel(cmd, &o.logLevel)
	return cmd
}

func (a *app) govern(ctx context.Context, o governorOptions) error {
	logger, err := a.daemonLogger("governor", o.logLevel)
	if err != nil {
		return err
	}
	for flag, dir := range map[string]string{"--run-dir": o.runDir, "--state-dir": o.stateDir, "--driver-root": o.driverRoot} {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("%s must be an absolute path, got %q", flag, dir)
		}
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	driver := a.openNVML(o.driverRoot)
	// The driver may have been loaded anew: after an error, the next call begins anew.
	const patience = 30 * time.Second
	return governor.Run(ctx, governor.Options{
		StateDir: o.stateDir, RunDir: o.runDir, Logger: logger, Limits: driver,
		Ready:    func() { a.notifyReady(logger) },
		Displace: a.displace(o.runDir, logger),
		Processes: func(ctx context.Context, gpuUUID string) ([]int, error) {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			processes, err := driver.Processes(ctx, gpuUUID)
			if err != nil {
				err = errors.Join(err, driver.Close(ctx))
			}
			var pids []int
			for _, p := range processes {
				pids = append(pids, p.PID)
			}
			return pids, err
		},
		Utilization: func(ctx context.Context, gpuUUID string, since time.Time) (map[int]float64, error) {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			busy, err := driver.ProcessUtilization(ctx, gpuUUID, since)
			if err != nil || busy == nil {
				return nil, err
			}
			parts := make(map[int]float64, len(busy))
			for pid, b := range busy {
				parts[pid] = b.Multiprocessors
			}
			return parts, nil
		},
	})
}

// displace returns how systemd's governor ends one that the device plugin has started: the plugin starts one as soon as none runs,
// which may be while systemd restarts its own. It returns nil for a governor that systemd has not started.
func (a *app) displace(runDir string, logger hclog.Logger) func(context.Context) error {
	if a.getenv("SYSTEMD_EXEC_PID") != strconv.Itoa(os.Getpid()) { // programs that Nomad starts inherit the variable
		return nil
	}
	return func(ctx context.Context) error {
		g, err := keeper.Find(runDir, "tranche")
		if err != nil || g == nil || !g.Kept {
			return err
		}
		logger.Info("taking the place of the governor that the device plugin has started", "pid", g.PID)
		return g.Stop(ctx)
	}
}
