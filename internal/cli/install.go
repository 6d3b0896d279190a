package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/internal/cli/install"
)

// installOptions are those of `tranche install` and `tranche uninstall`.
type installOptions struct {
	install.Options
	from, prefix string
	dryRun       bool
	restart      bool
	files, all   bool
	stateDir     string
	runDir       string
}

var engineNames = []string{"containerd", "docker", "podman", "nomad"}

func (a *app) installCommand() *cobra.Command {
	var o installOptions
	cmd := &cobra.Command{
		Use:   "install [containerd|docker|podman|nomad]...",
		Short: "Install Tranche on this node, and configure container engines and Nomad",
		Long: `Install Tranche on this node, and configure container engines and Nomad.

With --from, it first copies the programs and shadow libraries from a build folder. It adds a runtime "tranche" to the
configuration of each named engine, keeps everything else in the file, and leaves a copy of the original beside it. For
Nomad it also copies the plugins to the plugin directory, or links those of a package.

Running it again changes nothing. Engines are restarted only with --restart, and only if their configuration or plugins
have changed.`,
		ValidArgs: engineNames,
		Args:      withUsage(cobra.OnlyValidArgs),
		RunE:      func(cmd *cobra.Command, engines []string) error { return a.install(cmd.Context(), engines, o) },
	}
	o.addFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.from, "from", "", "build `folder` to copy the programs and shadow libraries from")
	f.StringVar(&o.prefix, "prefix", install.DefaultPrefix, "`directory` whose bin and lib/tranche they go to")
	f.StringVar(&o.RuntimePath, "runtime-path", "", "the tranche-runtime that engines call (default PREFIX/bin/tranche-runtime)")
	f.BoolVar(&o.SetDefault, "set-default", false, "make it the runtime of containers that name none")
	f.StringVar(&o.PluginDir, "plugin-dir", "", "Nomad's plugin `directory` (default what its configuration says)")
	return cmd
}

func (a *app) uninstallCommand() *cobra.Command {
	var o installOptions
	cmd := &cobra.Command{
		Use:   "uninstall [containerd|docker|podman|nomad]...",
		Short: "Undo what tranche install did",
		Long: `Undo what tranche install did, and nothing else, even if the files were edited since then.

--files also removes the programs and shadow libraries, if no engine is configured to use them. --all removes everything
that was installed. Both fail while a container with a claim runs, or one that tranche-runtime started. These, and
uninstall nomad, fail while a task of the task driver runs. The ledger, named volumes and usage stay.`,
		ValidArgs: engineNames,
		Args:      withUsage(cobra.OnlyValidArgs),
		RunE:      func(cmd *cobra.Command, engines []string) error { return a.uninstall(cmd.Context(), engines, o) },
	}
	o.addFlags(cmd)
	cmd.Flags().StringVar(&o.prefix, "prefix", "", "fail unless this is the installation's `directory` (default any)")
	cmd.Flags().BoolVar(&o.files, "files", false, "also remove the programs and shadow libraries")
	cmd.Flags().BoolVar(&o.all, "all", false, "all configured engines, and --files")
	cmd.Flags().BoolVar(&o.Force, "force", false, "continue even if something still depends on the runtime")
	cmd.Flags().StringVar(&o.runDir, "run-dir", claim.DefaultRunDir, "`directory` of the regions")
	return cmd
}

func (o *installOptions) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.ConfigFile, "config", "", "the engine's configuration `file`, if it is not the default")
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "show the changes without making them")
	cmd.Flags().BoolVar(&o.restart, "restart", false, "make engines read their configuration, and Nomad start replaced plugins")
	cmd.Flags().StringVar(&o.stateDir, "state-dir", claim.DefaultStateDir, "`directory` of the ledger and of what was installed")
}

// install works everything out before it changes anything.
func (a *app) install(ctx context.Context, engines []string, o installOptions) error {
	if o.from != "" && install.Packaged(o.prefix) {
		return fmt.Errorf("--from: %s has the programs of a package: upgrade the package instead, or name another directory with "+
			"--prefix; nothing was changed", o.prefix)
	}
	if len(engines) == 0 && o.from == "" {
		return fmt.Errorf("nothing to install: name an engine (%s) or a build folder with --from", strings.Join(engineNames, ", "))
	}
	if err := o.complete(engines); err != nil {
		return err
	}
	_, err := a.loadConfig()
	if err := cmp.Or(err, agentConfigError(a.configPath())); err != nil {
		return fmt.Errorf("%w; correct the file first, nothing was changed", err)
	}
	record, closeRecord, err := o.record()
	if err != nil {
		return err
	}
	defer closeRecord()
	plans, err := planEngines(ctx, engines, o, record, install.Engine.Install)
	if err != nil {
		return err
	}
	files, err := o.planFiles(plans, a.configFile)
	if err != nil {
		return err
	}
	return a.carryOut(ctx, o, record, files, plans)
}

// complete fills in paths and refuses those that would be taken from wherever the engine happens to be.
func (o *installOptions) complete(engines []string) error {
	o.CopiesPlugins = o.from != ""
	if err := absolute("--prefix", o.prefix); err != nil {
		return err
	}
	if o.RuntimePath == "" {
		o.RuntimePath = install.RuntimePath(o.prefix)
	}
	if err := o.oneConfig(engines); err != nil {
		return err
	}
	if err := absolute("--runtime-path", o.RuntimePath); err != nil {
		return err
	}
	if o.from != "" && o.RuntimePath == install.RuntimePath(o.prefix) {
		return nil // is copied there
	}
	info, err := os.Stat(o.RuntimePath)
	if err == nil && (!info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0) {
		err = fmt.Errorf("%s is no program (%s)", o.RuntimePath, info.Mode())
	}
	if err != nil {
		return fmt.Errorf("find tranche-runtime: %w; install it with --from, or say where it is with --runtime-path", err)
	}
	return nil
}

// oneConfig makes sure that --config is for one engine, and absolute, since the record is to know it again.
func (o *installOptions) oneConfig(engines []string) (err error) {
	if o.ConfigFile == "" {
		return nil
	}
	if len(engines) != 1 {
		return errors.New("--config names the file of one engine: name one engine with it")
	}
	o.ConfigFile, err = filepath.Abs(o.ConfigFile)
	return err
}

func absolute(flag, path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%s: %q has to be an absolute path", flag, path)
	}
	return nil
}

func (o *installOptions) record() (*install.Record, func(), error) {
	if err := absolute("--state-dir", o.stateDir); err != nil {
		return nil, nil, err
	}
	if o.dryRun {
		record, err := install.ReadRecord(o.stateDir)
		return record, func() {}, err
	}
	record, err := install.OpenRecord(o.stateDir)
	if err != nil {
		return nil, nil, err
	}
	return record, func() { _ = record.Close() }, nil
}

// enginePlan is the plan for one engine.
type enginePlan struct {
	name, key string
	*install.Plan
}

// configSeparator is between an engine's name and the file that --config names, in the keys of the record.
const configSeparator = " "

// planEngines works out what to do for each engine.
func planEngines(ctx context.Context, engines []string, o installOptions, r *install.Record,
	plan func(install.Engine, context.Context, install.Options, install.Entry) (*install.Plan, error),
) ([]enginePlan, error) {
	var plans []enginePlan
	for _, name := range engines {
		key := name
		if o.ConfigFile != "" {
			key = name + configSeparator + o.ConfigFile
		}
		was, found := r.Engines[key]
		if !found && r.Engines[name].File == o.ConfigFile {
			key, was = name, r.Engines[name]
		}
		p, err := plan(install.Engines()[name], ctx, o.Options, was)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		plans = append(plans, enginePlan{name, key, p})
	}
	return plans, nil
}

// planFiles works out what to copy. The plugins go where Nomad looks for them, if it is among the engines.
func (o *installOptions) planFiles(plans []enginePlan, configFile string) (*install.Plan, error) {
	if o.from == "" {
		return &install.Plan{}, nil
	}
	files := install.Files{From: o.from, Prefix: o.prefix, ConfigFile: configFile}
	for _, p := range plans {
		if p.name == "nomad" {
			files.PluginDir = p.Entry.PluginDir
		}
	}
	return files.Install()
}

// carryOut shows the plans or applies them, the files first, since the engines' configurations name them.
func (a *app) carryOut(ctx context.Context, o installOptions, r *install.Record, files *install.Plan, plans []enginePlan) error {
	all := &install.Plan{Changes: files.Changes, Notes: files.Notes, Dirs: files.Dirs}
	for _, p := range plans {
		all.Changes = append(all.Changes, p.Changes...)
		all.Notes = append(all.Notes, p.Notes...)
	}
	if o.dryRun {
		err := all.Show(a.stdout)
		a.say(all)
		fmt.Fprintln(a.stderr, "Nothing was changed (--dry-run).")
		return err
	}
	if err := applyRecorded(r, files, all, a.stdout); err != nil {
		return err
	}
	if o.files {
		clear(r.Files) // what was changed since then is not ours any more
	}
	for _, p := range plans {
		r.Linked(p.Plan)
		if p.Entry == (install.Entry{}) {
			delete(r.Engines, p.key)
		} else {
			r.Engines[p.key] = p.Entry
		}
	}
	if err := r.Save(); err != nil {
		return err
	}
	if len(all.Changes) == 0 {
		fmt.Fprintln(a.stdout, "Nothing to change.")
	}
	a.say(all)
	return a.reload(ctx, o, plans)
}

// applyRecorded applies all plans. What it copies is in the record before, so that an uninstallation finds the files even if this
// process is killed.
func applyRecorded(r *install.Record, files, all *install.Plan, out io.Writer) error {
	before := maps.Clone(r.Files)
	r.Written(files)
	if len(r.Files) >= len(before) { // removes nothing
		if err := r.Save(); err != nil {
			return err
		}
	}
	if err := all.Apply(out); err != nil {
		r.Files = before
		return errors.Join(err, r.Save())
	}
	return nil
}

func (a *app) say(p *install.Plan) {
	for _, note := range p.Notes {
		fmt.Fprintf(a.stderr, "Note: %s\n", note)
	}
}

// reload has the engines use what was installed, or says how.
func (a *app) reload(ctx context.Context, o installOptions, plans []enginePlan) error {
	for _, p := range plans {
		does, err := p.old()
		if err != nil {
			return err
		}
		if does == "" || len(p.Reload) == 0 {
			continue
		}
		running, err := install.Running(p.name)
		if err != nil {
			return err
		}
		if !running {
			fmt.Fprintf(a.stdout, "%s is not running, and reads its configuration when it starts\n", p.name)
			continue
		}
		command := strings.Join(p.Reload, " ")
		if !o.restart {
			fmt.Fprintf(a.stdout, "%s %s until you run: %s (%s)\n", p.name, does, command, p.ReloadNote)
			continue
		}
		out, err := exec.CommandContext(ctx, p.Reload[0], p.Reload[1:]...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("everything is installed, but %s still %s: %s: %w: %s", p.name, does, command, err, out)
		}
		fmt.Fprintf(a.stdout, "ran: %s\n", command)
	}
	return nil
}

// old says what of an engine is as it was before; empty if nothing is.
func (p *enginePlan) old() (string, error) {
	if len(p.Changes) > 0 {
		return "goes by its old configuration", nil
	}
	if p.Entry.PluginDir == "" {
		return "", nil
	}
	plugins, err := install.OldPlugins(p.Entry.PluginDir)
	if err != nil || len(plugins) == 0 {
		return "", err
	}
	return "runs the old " + strings.Join(plugins, " and "), nil
}
