package runtime

import (
	"path/filepath"
	"slices"
	"strings"
)

// invocation is what tranche-runtime has to know of the command line that is meant for the next runtime.
type invocation struct {
	subcommand string
	// id is the container's, where the subcommand is about one.
	id string
	// bundle is the directory that holds the container's spec, "" for the current one.
	bundle string
	// specFile is crun's way to name another file than config.json in the bundle.
	specFile string
	// process is the file that holds the process for exec to start, "" where the command line says it.
	process string
	// log and logFormat say where the caller looks for errors.
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

// subcommands are those of runc and crun. Whatever else stands between the global flags and one of them is the value of
// a flag that we don't know.
var subcommands = []string{
	"checkpoint", "create", "delete", "events", "exec", "features", "help", "kill", "list", "mounts", "pause", "ps",
	"restore", "resume", "run", "spec", "start", "state", "update", "version",
}

// parseInvocation reads the arguments after the program's name.
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

// parseExec ends at the container's ID: what follows is the command to execute, with flags of its own.
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

// creates tells whether the command makes a container out of a bundle.
func (inv invocation) creates() bool {
	return inv.subcommand == "create" || inv.subcommand == "run"
}

// specPath is the file that the next runtime will read the container's spec from.
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

// nextArgument takes one flag, with its value, or one positional argument off args.
func nextArgument(args []string, valueFlags []string) (name, value string, positional bool, rest []string) {
	arg, rest := args[0], args[1:]
	if arg == "--" && len(rest) > 0 {
		return "", rest[0], true, rest[1:]
	}
	if len(arg) < 2 || arg[0] != '-' {
		return "", arg, true, rest
	}
	name, value, joined := strings.Cut(strings.TrimLeft(arg, "-"), "=")
	if arg[1] == '-' {
		name = unabbreviated(name, valueFlags)
	} else if !joined && !slices.Contains(valueFlags, name) {
		name, value, joined = shortFlag(name, valueFlags)
	}
	if !joined && slices.Contains(valueFlags, name) && len(rest) > 0 {
		return name, rest[0], false, rest[1:]
	}
	return name, value, false, rest
}

// unabbreviated is the one flag that begins with name: crun, like all that uses getopt, takes the beginning of a flag's
// name for it.
func unabbreviated(name string, flags []string) string {
	var found []string
	for _, flag := range flags {
		if flag == name {
			return name
		}
		if strings.HasPrefix(flag, name) {
			found = append(found, flag)
		}
	}
	if len(found) == 1 {
		return found[0]
	}
	return name
}

// shortFlag takes apart what crun takes in one: "-b" and its value, and short flags without a value before it.
func shortFlag(name string, valueFlags []string) (flag, value string, joined bool) {
	short := strings.TrimLeft(name, "dt")
	if short == "" || !slices.Contains(valueFlags, short[:1]) {
		return name, "", false
	}
	return short[:1], short[1:], len(short) > 1
}
