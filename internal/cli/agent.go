package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/tranche-gpu/tranche/agent"
	"github.com/tranche-gpu/tranche/agent/monitor"
	"github.com/tranche-gpu/tranche/agent/page"
	"github.com/tranche-gpu/tranche/agent/policy"
	"github.com/tranche-gpu/tranche/agent/serve"
	"github.com/tranche-gpu/tranche/agent/timeline"
	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/internal/size"
)

// defaultAgentAddress is where the agent listens unless it is told otherwise.
const defaultAgentAddress = "127.0.0.1:9760"

type agentOptions struct {
	place
	serve.Options
	sliceMemory string
	logLevel    string
	nomadUI     string
}

func (a *app) agentCommand() *cobra.Command {
	var o agentOptions
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Serve metrics and web pages about this node's GPUs and claims, and account their usage",
		Long: `Serve metrics and web pages about this node's GPUs and claims, and account their usage. Run it as root, since the ledger
belongs to root.

The agent reads the ledger, the regions and NVML, and changes no claim. It serves metrics for Prometheus at /metrics, and
pages at /. On addresses other than this machine's own it requires TLS, which --web-config configures.

The table [idle] of the configuration file sets what happens to idle claims: nothing, a report, a warning, or a stop
through Nomad's API, with nomad_address and nomad_token_file of that file.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.agent(cmd.Context(), o) },
	}
	o.addFlags(cmd)
	addSliceMemory(cmd, &o.sliceMemory)
	o.addServing(cmd, defaultAgentAddress)
	return cmd
}

func (a *app) agent(ctx context.Context, o agentOptions) error {
	logger, err := a.daemonLogger("agent", o.logLevel)
	if err != nil {
		return err
	}
	m, err := a.monitor(o.place, o.sliceMemory, logger)
	if err != nil {
		return err
	}
	pages, err := o.pages(a.version)
	if err != nil {
		return err
	}
	accounting, err := a.accounting(o.place, m, logger.Named("usage"))
	if err != nil {
		return err
	}
	defer accounting.close()
	m.Usage, pages.Usage = accounting.totals, accounting.report
	pages.Timeline = new(timeline.Timeline)
	m.Observe = pages.Timeline.Observe
	settings, err := policy.LoadConfig(a.configPath())
	if err != nil {
		return err
	}
	if settings.Nomad.Address != "" {
		pages.Waiting = (&waitingJobs{nomad: settings.Nomad}).queue
	}
	idle := policy.New(policy.Options{
		Config: settings, Snapshot: m.Snapshot, RunDir: o.runDir, Node: pages.Node, Logger: logger.Named("idle"),
	})
	m.PolicyActions = idle.Actions
	handler, err := agent.Handler(m, pages)
	if err != nil {
		return err
	}
	server, err := serve.Listen(o.Options)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	var observing sync.WaitGroup
	defer func() {
		stop()
		observing.Wait()
	}()
	observing.Go(func() { m.Run(ctx) })
	observing.Go(func() { accounting.run(ctx) })
	observing.Go(func() { idle.Run(ctx) })
	logger.Info("listening", "address", server.URL())
	a.notifyReady(logger)
	return server.Serve(ctx, handler)
}

// pages are the options of the pages.
func (o *agentOptions) pages(version string) (page.Options, error) {
	pages := page.Options{Node: "this node", Version: version}
	if name, err := os.Hostname(); err == nil {
		pages.Node = name
	}
	var err error
	pages.NomadUI, err = parseNomadUI(o.nomadUI)
	return pages, err
}

// addServing adds the flags of what serves pages.
func (o *agentOptions) addServing(cmd *cobra.Command, address string) {
	cmd.Flags().StringVar(&o.Listen, "listen", address, "`address` to listen on: HOST:PORT or unix:PATH")
	cmd.Flags().StringVar(&o.WebConfig, "web-config", "", "`file` with TLS and passwords, in the format of Prometheus's exporters")
	cmd.Flags().StringSliceVar(&o.Hosts, "host", nil, "additional host `name` by which browsers may reach the server (repeatable)")
	cmd.Flags().StringVar(&o.nomadUI, "nomad-ui", "", "`address` of Nomad's web UI, for links to jobs and allocations")
	addLogLevel(cmd, &o.logLevel)
}

// parseNomadUI returns the address of Nomad's web interface; nil if there is none.
func parseNomadUI(text string) (*url.URL, error) {
	if text == "" {
		return nil, nil
	}
	address, err := url.Parse(text)
	if err != nil || address.Host == "" || address.Scheme != "http" && address.Scheme != "https" {
		return nil, fmt.Errorf("--nomad-ui: %q is no address of Nomad; write one such as https://nomad.example.com:4646", text)
	}
	if address.User != nil {
		return nil, errors.New("--nomad-ui: the address has a user name or password, which every page would show; leave them out")
	}
	return address, nil
}

// monitor makes a monitor of the node at a place.
func (a *app) monitor(p place, sliceMemory string, logger hclog.Logger) (*monitor.Monitor, error) {
	sliceBytes, err := size.ParseGPU(sliceMemory)
	if err != nil {
		return nil, fmt.Errorf("--slice-memory: %w", err)
	}
	ledger, err := claim.Open(claim.Options{StateDir: p.stateDir, RunDir: p.runDir})
	if err != nil {
		return nil, err
	}
	return monitor.New(monitor.Options{
		Ledger: ledger, NVML: a.openNVML(p.driverRoot), RunDir: p.runDir, SliceBytes: sliceBytes, Logger: logger,
	}), nil
}
