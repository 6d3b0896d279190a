package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/governor/keeper"
	"github.com/tranche-gpu/tranche/internal/cli/install"
)

// uninstall works everything out before it changes anything, too.
func (a *app) uninstall(ctx context.Context, engines []string, o installOptions) error {
	if len(engines) == 0 && !o.files && !o.all {
		return fmt.Errorf("nothing to uninstall: name an engine (%s) or use --files or --all", strings.Join(engineNames, ", "))
	}
	if o.all && (len(engines) > 0 || o.ConfigFile != "") {
		return errors.New("--all is for all engines: name none, and no --config")
	}
	if err := o.oneConfig(engines); err != nil {
		return err
	}
	record, closeRecord, err := o.record()
	if err != nil {
		return err
	}
	defer closeRecord()
	if o.prefix != "" {
		if err := record.CheckPrefix(o.prefix); err != nil {
			return err
		}
	}
	plans, err := o.planUninstall(ctx, engines, record)
	if err != nil {
		return err
	}
	if err := o.refuseStops(plans); err != nil {
		return err
	}
	o.files = o.files || o.all
	if err := o.refuseTasks(plans); err != nil {
		return err
	}
	files := &install.Plan{}
	if o.files {
		if err := o.refuseInUse(ctx, record, plans); err != nil {
			return err
		}
		if files, err = install.UninstallFiles(record); err != nil {
			return err
		}
	}
	if err := a.carryOut(ctx, o, record, files, plans); err != nil || !o.files || o.dryRun {
		return err
	}
	return a.stopGovernor(ctx, o.runDir)
}

// stopGovernor ends the governor that a device plugin has started, which would go on with a program that was removed. A service
// manager ends its own.
func (a *app) stopGovernor(ctx context.Context, runDir string) error {
	g, err := keeper.Find(runDir, "tranche")
	if err != nil || g == nil || !g.Kept {
		return err
	}
	if err := g.Stop(ctx); err != nil {
		return fmt.Errorf("end the governor, process %d: %w", g.PID, err)
	}
	fmt.Fprintf(a.stdout, "ended the governor, process %d\n", g.PID)
	return nil
}

// planUninstall works out what to do for each engine: those that were named, or all of the record.
func (o installOptions) planUninstall(ctx context.Context, engines []string, r *install.Record) ([]enginePlan, error) {
	if !o.all {
		return planEngines(ctx, engines, o, r, install.Engine.Uninstall)
	}
	var all []enginePlan
	for _, key := range slices.Sorted(maps.Keys(r.Engines)) {
		one := o
		var name string
		name, one.ConfigFile, _ = strings.Cut(key, configSeparator)
		plans, err := planEngines(ctx, []string{name}, one, r, install.Engine.Uninstall)
		if err != nil {
			return nil, err
		}
		all = append(all, plans...)
	}
	return all, nil
}

// refuseStops keeps --restart from stopping containers.
func (o *installOptions) refuseStops(plans []enginePlan) error {
	for _, p := range plans {
		if o.restart && !o.dryRun && !o.Force && len(p.Changes) > 0 && len(p.Stops) > 0 {
			return fmt.Errorf("--restart: %s would stop %s: stop them first, leave out --restart, or use --force; nothing was changed",
				strings.Join(p.Reload, " "), nameContainers(p.Stops))
		}
	}
	return nil
}

// refuseTasks keeps Nomad's plugins while a container of the task driver runs, with a claim or without: nobody else would end it.
func (o *installOptions) refuseTasks(plans []enginePlan) error {
	if o.Force || !o.files && !slices.ContainsFunc(plans, func(p enginePlan) bool { return p.name == "nomad" }) {
		return nil
	}
	tasks, err := install.TaskContainers()
	if err != nil || len(tasks) == 0 {
		return err
	}
	return fmt.Errorf("tasks of Nomad run and need nomad-driver-tranche: %s; stop them first, or use --force; nothing was changed",
		nameContainers(tasks))
}

// nameContainers lists containers in a message.
func nameContainers(ids []string) string {
	var short []string
	for _, id := range ids {
		short = append(short, claim.ShortID(id))
	}
	if len(short) == 1 {
		return "container " + short[0]
	}
	return fmt.Sprintf("%d containers (%s)", len(short), claim.ListNames(short))
}

// refuseInUse keeps the programs where an engine would call them, or a container that runs needs its poststop hook.
func (o *installOptions) refuseInUse(ctx context.Context, r *install.Record, plans []enginePlan) error {
	if o.Force {
		return nil
	}
	for key, entry := range r.Engines {
		if !slices.ContainsFunc(plans, func(p enginePlan) bool { return p.key == key }) {
			return fmt.Errorf("%s is configured to use the programs (%s): uninstall that first, or use --force; nothing was "+
				"changed", key, entry.File)
		}
	}
	running, err := install.RuntimeContainers()
	if err != nil {
		return err
	}
	if len(running) > 0 {
		return fmt.Errorf("engines need tranche-runtime to end what runs with it: %s; stop them first, or use --force; nothing was changed",
			nameContainers(running))
	}
	ledger, err := claim.Open(claim.Options{StateDir: o.stateDir, RunDir: o.runDir})
	if err != nil {
		return err
	}
	claims, _, err := ledger.List(ctx)
	if err != nil {
		return fmt.Errorf("look for containers that need the programs: %w", err)
	}
	for _, c := range claims {
		if c.Container != nil && claim.Alive(*c.Container) {
			return fmt.Errorf("container %s runs with claim %s and needs tranche-hook when it ends: stop it first, or use "+
				"--force; nothing was changed", claim.ShortID(c.Container.ID), c.ID)
		}
	}
	return nil
}
