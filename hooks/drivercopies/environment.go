package drivercopies

import (
	"fmt"
	"path"
	"regexp"
	"strings"
	"sync"

	"github.com/tranche-gpu/tranche/runtime/bundle"
	"github.com/tranche-gpu/tranche/runtime/rootfs"
)

// searchPath lists patterns for the directories in LD_LIBRARY_PATH of the container's process, as the loader reads it: an
// empty element is the working directory, and relative ones start there.
func searchPath(program bundle.Program) ([]string, error) {
	var patterns []string
	for _, value := range variable(program, "LD_LIBRARY_PATH") {
		if value == "" {
			continue
		}
		for dir := range strings.SplitSeq(strings.ReplaceAll(value, ";", ":"), ":") {
			more, err := expand(program.Cwd, dir)
			if err != nil {
				return nil, fmt.Errorf("LD_LIBRARY_PATH: %w", err)
			}
			patterns = append(patterns, more...)
		}
	}
	return patterns, nil
}

// preload is the files that the loader loads into every program, whatever its dependencies.
type preload struct {
	patterns []string        // for files that are given by a path
	names    map[string]bool // of files that the loader searches for
}

// preloaded reads LD_PRELOAD and LD_AUDIT of the container's process, and /etc/ld.so.preload of its image (ld.so(8)).
func preloaded(root *rootfs.Root, program bundle.Program) (preload, error) {
	p := preload{names: map[string]bool{}}
	for _, name := range []string{"LD_PRELOAD", "LD_AUDIT"} {
		for _, value := range variable(program, name) {
			if err := p.add(program.Cwd, value); err != nil {
				return preload{}, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	const file = "/etc/ld.so.preload"
	content, err := root.ReadFile(file, maxConfigBytes)
	if rootfs.Unreachable(err) {
		return p, nil
	}
	if err != nil {
		return preload{}, err
	}
	for line := range strings.Lines(string(content)) {
		line, _, _ = strings.Cut(line, "#")
		if err := p.add(program.Cwd, line); err != nil {
			return preload{}, fmt.Errorf("%s: %w", file, err)
		}
	}
	return p, nil
}

// separators are the characters between preloaded files: in LD_AUDIT, in LD_PRELOAD, in glibc's file, and for musl. A name
// in one list may contain separators of another, so each list is split in each way.
var separators = []string{":\x00", ": \x00", ": \t\n\x00", ": \t\r\n\v\f\x00"}

func (p *preload) add(cwd, list string) error {
	for _, each := range separators {
		for _, name := range strings.FieldsFunc(list, splitter(each)) {
			if !strings.Contains(name, "/") {
				p.names[name] = true
				continue
			}
			patterns, err := expand(cwd, name)
			if err != nil {
				return err
			}
			p.patterns = append(p.patterns, patterns...)
		}
	}
	return nil
}

// variable lists the values of a variable in the container's environment: if it is set twice, the shell or the loader
// decides which one counts. A value ends at a NUL byte, as it does for C.
func variable(program bundle.Program, name string) (values []string) {
	for _, entry := range program.Env {
		if value, is := strings.CutPrefix(entry, name+"="); is {
			value, _, _ = strings.Cut(value, "\x00")
			values = append(values, value)
		}
	}
	return values
}

func splitter(separators string) func(rune) bool {
	return func(r rune) bool { return strings.ContainsRune(separators, r) }
}

// from makes a path absolute by prepending dir, unless it is absolute already.
func from(dir, name string) string {
	if path.IsAbs(name) {
		return name
	}
	return "/" + strings.TrimPrefix(dir, "/") + "/" + name
}

// The loader's variables in paths (ld.so(8)), with braces or without.
var (
	originVariable   = loaderVariable("ORIGIN")
	platformVariable = loaderVariable("PLATFORM")
	libVariable      = loaderVariable("LIB")
)

// loaderVariable returns a function for the expression that matches a variable. It is compiled when it is first needed: every
// start of a container waits for the hooks to initialize, and hardly any has such a variable.
func loaderVariable(name string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\$(` + name + `\b|\{` + name + `\})`) })
}

// libNames are the values that $LIB may have: the names of library directories on Red Hat and Debian.
var libNames = []string{"lib", "lib64", "lib32", "libx32", "lib/" + triplet, "lib/i386-linux-gnu"}

// expand lists patterns for the paths that a name with the loader's variables may mean. The name itself is among them,
// since neither musl nor old versions of glibc replace variables everywhere. Relative names start in the working directory.
// $PLATFORM matches anything, since glibc has had several names for one processor. $ORIGIN is the directory of the program
// that runs, so it is refused.
func expand(cwd, name string) ([]string, error) {
	if !strings.Contains(name, "$") && !strings.Contains(cwd, "$") {
		return []string{literal(from(cwd, name))}, nil
	}
	if originVariable().MatchString(name) {
		return nil, fmt.Errorf("%q: $ORIGIN is another directory for each program; name the directory itself", strings.TrimSpace(name))
	}
	whole := literal(from(cwd, name))
	patterns := []string{whole}
	pattern := platformVariable().ReplaceAllLiteralString(whole, "*")
	if !libVariable().MatchString(pattern) {
		return append(patterns, pattern), nil // the same twice, mostly, which costs nothing
	}
	for _, lib := range libNames {
		patterns = append(patterns, libVariable().ReplaceAllLiteralString(pattern, lib))
	}
	return patterns, nil
}

// literal returns the pattern that matches this path only.
func literal(name string) string { return globMeta.Replace(name) }

var globMeta = strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `\`, `\\`)
