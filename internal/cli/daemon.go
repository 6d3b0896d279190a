package cli

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/hashicorp/go-hclog"
)

// daemonLogger returns the logger of a command that runs as a service.
func (a *app) daemonLogger(name, level string) (hclog.Logger, error) {
	least := hclog.LevelFromString(level)
	if least == hclog.NoLevel {
		return nil, fmt.Errorf("--log-level: %q is no level; there are trace, debug, info, warn and error", level)
	}
	return hclog.New(&hclog.LoggerOptions{Name: "tranche " + name, Level: least, Output: a.stderr}), nil
}

// notifySystemd sends a state to systemd if that started this process (sd_notify(3)).
func (a *app) notifySystemd(state string) error {
	socket, ok := lookupEnv(a.environ, "NOTIFY_SOCKET")
	if !ok || socket == "" {
		return nil
	}
	connection, err := new(net.Dialer).DialContext(context.Background(), "unixgram", socket)
	if err != nil {
		return err
	}
	_, err = connection.Write([]byte(state))
	return errors.Join(err, connection.Close())
}
