package cli

import (
	"errors"
	"fmt"
	"net"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"
)

// addLogLevel adds the flag for what daemonLogger takes.
func addLogLevel(cmd *cobra.Command, level *string) {
	cmd.Flags().StringVar(level, "log-level", "info", "minimum `level` of log messages: "+logLevels)
}

const logLevels = "trace, debug, info, warn or error"

// daemonLogger returns the logger of a command that runs as a service.
func (a *app) daemonLogger(name, level string) (hclog.Logger, error) {
	least := hclog.LevelFromString(level)
	if least == hclog.NoLevel {
		return nil, fmt.Errorf("--log-level must be %s, got %q", logLevels, level)
	}
	return hclog.New(&hclog.LoggerOptions{Name: "tranche " + name, Level: least, Output: a.stderr}), nil
}

// notifyReady tells systemd that the service is ready, if systemd started it (sd_notify(3)).
func (a *app) notifyReady(logger hclog.Logger) {
	socket := a.getenv("NOTIFY_SOCKET")
	if socket == "" {
		return
	}
	connection, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err == nil {
		_, err = connection.Write([]byte("READY=1"))
		err = errors.Join(err, connection.Close())
	}
	if err != nil {
		logger.Warn("cannot notify systemd", "error", err)
	}
}
