package wrapper

import (
	"path/filepath"
	"slices"
	"strings"
)

// invocation is the part of the next runtime's command line that tranche-runtime needs.
type invocation struct {
	subcommand string
	// id is the container's ID, if the subcommand has one.
	id string
	// bundle is the directory with the container's spec, "" for the working directory.
	bundle string
	// specFile is the name of the spec in the bundle if it is not config.json, which crun allows.
	specFile string
	// process is the file that describes the process for exec, "" if the command line does.
	process string
	// log and logFormat are the file in which the caller looks for errors, and its format.
	log       string
	logFormat string
}

// The flags of runc and crun that take a value in the next argument unless it follows after "=".
var (
	globalValueFlags = []string{"log", "log-format", "log-level", "root", "criu", "rootless", "cgroup-manager"}
	createValueFlags = []string{"bundle", "b", "config", "f", "console-socket", "pid-file", "pidfd-socket", "preserve-fds"}
	execValueFlags   = []string{
		"process", "p", "console-socket", "cwd", "env", "e", "user", "u", "additional-gids", "g", "pid-file", "pidfd-socket",
		"process-label", "apparmor", "cap", "c", "preserve-fds", "cgroup",
	}
)

// subcommands are those of runc and crun. Any other word between the global flags and a subcommand is the value of an unknown
// flag.
var subcommands = []string{
	"checkpoint", "create", "delete", "events", "exec", "features", "help", "kill", "list", "mounts", "pause", "ps",
	"restore", "resume", "run", "spec", "start", "state", "update", "version",
}

// parseInvocation parses the arguments after the program's name.
func parseInvocation(args []string) invocation {
	var inv invocation
	for len(args) > 0 {
		var name, value string
		var positional bool
		name, value, positional, args = nextArgument(args, globalValueFlags)
		switch {
		case positional && slices.Contains(subcommands, value):
			inv.subcommand = value
			inv.parseSubcommand(args)
			return inv
		case positional:
		case name == "log":
			inv.log = value
		case name == "log-format":
			inv.logFormat = value
		}
	}
	return inv
}

func (inv *invocation) parseSubcommand(args []string) {
	switch {
	case inv.creates():
		inv.parseCreate(args)
	case inv.subcommand == "exec":
		inv.parseExec(args)
	}
}

func (inv *invocation) parseCreate(args []string) {
	for len(args) > 0 {
		var name, value string
		var positional bool
		name, value, positional, args = nextArgument(args, createValueFlags)
		switch {
		case positional && inv.id == "":
			inv.id = value
		case name == "bundle", name == "b":
			inv.bundle = value
		case name == "config", name == "f":
			inv.specFile = value
		}
	}
}

// parseExec stops at the container's ID: the command to execute follows, with its own flags.
func (inv *invocation) parseExec(args []string) {
	for len(args) > 0 && inv.id == "" {
		var name, value string
		var positional bool
		name, value, positional, args = nextArgument(args, execValueFlags)
		switch {
		case positional:
			inv.id = value
		case name == "process", name == "p":
			inv.process = value
		}
	}
}

// creates reports whether the command creates a container from a bundle.
func (inv invocation) creates() bool {
	return inv.subcommand == "create" || inv.subcommand == "run"
}

// specPath returns the path of the container's spec.
func (inv invocation) specPath() string {
	file := inv.specFile
	if file == "" {
		file = "config.json"
	}
	if filepath.IsAbs(file) {
		return file
	}
	return filepath.Join(inv.bundle, file)
}

// nextArgument returns the first flag, with its value, or positional argument of args, and the rest.
func nextArgument(args []string, valueFlags []string) (name, value string, positional bool, rest []string) {
	arg, rest := args[0], args[1:]
	if arg == "--" && len(rest) > 0 {
		return "", rest[0], true, rest[1:]
	}
	if len(arg) < 2 || arg[0] != '-' {
		return "", arg, true, rest
	}
	name, value, joined := strings.Cut(strings.TrimLeft(arg, "-"), "=")
	if arg[1] != '-' && !joined && !slices.Contains(valueFlags, name) {
		name, value, joined = shortFlag(name, valueFlags)
	}
	if !joined && slices.Contains(valueFlags, name) && len(rest) > 0 {
		return name, rest[0], false, rest[1:]
	}
	return name, value, false, rest
}

// shortFlag splits what crun accepts as one argument: "-b" and its value, and short flags without a value before it.
func shortFlag(name string, valueFlags []string) (flag, value string, joined bool) {
	short := strings.TrimLeft(name, "dt")
	if short == "" || !slices.Contains(valueFlags, short[:1]) {
		return name, "", false
	}
	return short[:1], short[1:], len(short) > 1
}
