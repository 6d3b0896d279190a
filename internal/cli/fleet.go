package cli

import (
	"context"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tranche-gpu/tranche/agent/fleet"
	"github.com/tranche-gpu/tranche/agent/serve"
)

// defaultFleetAddress is where the fleet view listens unless it is told otherwise.
const defaultFleetAddress = "127.0.0.1:9761"

func (a *app) fleetCommand() *cobra.Command {
	var o agentOptions
	cmd := &cobra.Command{
		Use:   "fleet",
		Short: "Serve web pages about the GPUs of all nodes, from Nomad's API",
		Long: `Serve web pages about the GPUs of all nodes, from Nomad's API.

The environment names the Nomad server, as for the command nomad: NOMAD_ADDR, NOMAD_CACERT, NOMAD_CLIENT_CERT, …
NOMAD_TOKEN is not used. Viewers sign in with a Nomad token, which needs node:read, and read-job in the namespaces whose
jobs they may see.

The command needs no rights on its node, and no port on others. On addresses other than this machine's own it requires
TLS, which --web-config configures.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.fleet(cmd.Context(), o) },
	}
	o.addServing(cmd, defaultFleetAddress)
	return cmd
}

func (a *app) fleet(ctx context.Context, o agentOptions) error {
	logger, err := a.daemonLogger("fleet", o.logLevel)
	if err != nil {
		return err
	}
	nomadUI, err := parseNomadUI(o.nomadUI)
	if err != nil {
		return err
	}
	nomad, err := fleet.FromEnvironment()
	if err != nil {
		return err
	}
	pages, err := fleet.New(fleet.Options{Nomad: nomad, NomadUI: nomadUI, Version: a.version, Logger: logger})
	if err != nil {
		return err
	}
	defer pages.Close()
	o.Forms = fleet.Forms
	server, err := serve.Listen(o.Options)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	logger.Info("listening", "address", server.URL())
	a.notifyReady(logger)
	return server.Serve(ctx, pages.Handler())
}
