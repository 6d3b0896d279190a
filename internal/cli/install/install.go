// Package install puts Tranche on a node and takes it off again: it makes container engines and Nomad know the runtime,
// and copies the binaries and shadow libraries to where they belong.
//
// Whatever is to change is first worked out as a Plan, from what is there, and then shown or applied. Whatever else is
// in a file stays as it is: where an engine merges several files, ours is one of its own; else lines are put between two
// marks that uninstalling looks for.
package install

import (
	"context"
	"fmt"
)

// RuntimeName is what engines call the runtime.
const RuntimeName = "tranche"

// Options say what is asked for.
type Options struct {
	// RuntimePath is the tranche-runtime that the engine is to call.
	RuntimePath string
	// ConfigFile is the engine's configuration file, "" for the one that it reads by default.
	ConfigFile string
	// SetDefault makes the runtime the one for containers that name none.
	SetDefault bool
	// Force takes the runtime away although something depends on it.
	Force bool
	// PluginDir is Nomad's, "" for what its configuration says.
	PluginDir string
	// CopiesPlugins says that the plugins are put there, too.
	CopiesPlugins bool
}

// Engine is what can be told of the runtime.
type Engine interface {
	// Install plans what makes the engine know the runtime. The entry is what the record holds of an earlier time.
	Install(ctx context.Context, o Options, was Entry) (*Plan, error)
	// Uninstall plans what takes that back.
	Uninstall(ctx context.Context, o Options, was Entry) (*Plan, error)
}

// Engines are those that there are, by name.
func Engines() map[string]Engine {
	return map[string]Engine{
		"containerd": Containerd{}, "docker": Docker{}, "podman": Podman{}, "nomad": Nomad{},
	}
}

// Plan is what is to be done.
type Plan struct {
	Changes []Change
	// Dirs are removed afterwards, if nothing is in them any more.
	Dirs []string
	// Entry is what the record is to hold of the engine afterwards. An empty one means nothing.
	Entry Entry
	// Notes are for the operator.
	Notes []string
	// Reload is the command that makes the engine read its configuration again, and ReloadNote what it does. Without a
	// command the engine reads it by itself.
	Reload     []string
	ReloadNote string
	// Stops are the containers that the command would stop.
	Stops []string
}

// change adds a change to the plan, unless it is none.
func (p *Plan) change(f *file, after []byte) {
	if f.exists && string(f.text) == string(after) {
		return
	}
	p.Changes = append(p.Changes, Change{file: f, after: after})
}

// remove adds the removal of a file.
func (p *Plan) remove(f *file) { p.Changes = append(p.Changes, Change{file: f, removes: true}) }

func (p *Plan) note(format string, args ...any) {
	p.Notes = append(p.Notes, fmt.Sprintf(format, args...))
}

// DependsError says that something besides what was installed names the runtime.
type DependsError struct {
	// File is the configuration file, Setting what in it names the runtime.
	File, Setting string
}

func (e *DependsError) Error() string {
	return fmt.Sprintf("%s still has %s, so the engine would not start its containers any more: change that first, or "+
		"use --force to take it out as well; nothing was changed", e.File, e.Setting)
}
