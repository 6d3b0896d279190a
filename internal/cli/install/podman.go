package install

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Podman reads the main file and then, in the order of their names, what is in the directory beside it.
const (
	podmanConfig  = "/etc/containers/containers.conf"
	podmanDropIns = "/etc/containers/containers.conf.d"
)

// podmanDropIn is our file there.
const podmanDropIn = "99-tranche.conf"

// Podman is Podman, which has no daemon: the next command reads what was written.
type Podman struct{}

// Install plans a file of our own, or an edit of the one that is named.
func (Podman) Install(_ context.Context, o Options, was Entry) (*Plan, error) {
	f, err := readFile(orDefault(o.ConfigFile, filepath.Join(podmanDropIns, podmanDropIn)))
	if err != nil {
		return nil, err
	}
	if err := refuseAbsent("podman", o, f); err != nil {
		return nil, err
	}
	for _, other := range podmanFiles(f.path) {
		if _, err := readPodman(other); err != nil {
			return nil, err
		}
	}
	o.SetDefault = o.SetDefault || was.SetDefault
	before := withoutMarked(string(f.text), podmanDefault())
	tree := tomlTree{}
	if err := parseTOML(&file{path: f.path, text: []byte(before)}, &tree); err != nil {
		return nil, err
	}
	path := []string{"engine", "runtimes"}
	set := nest(any([]any{o.RuntimePath}), slices.Concat(path, []string{RuntimeName})...)
	setting := RuntimeName + " = " + quote([]any{o.RuntimePath})
	if lookup(tree, slices.Concat(path, []string{RuntimeName})...) != nil {
		return nil, errors.New(f.path + " has a runtime called " + RuntimeName + " that tranche install did not write: take " +
			"it out first, nothing was changed")
	}
	after, lines := before, []string{}
	if o.SetDefault {
		after, lines = setKey(before, []string{"engine"}, "runtime", RuntimeName)
		merge(set, nest(any(RuntimeName), "engine", "runtime"))
	}
	if header, found := findTable(after, path); found {
		after = insertMarked(after, header, []string{setting})
	} else {
		lines = append(lines, tableHeader(path), setting)
	}
	if len(lines) > 0 {
		after = appendMarked(after, lines)
	}
	plan := &Plan{Entry: Entry{File: f.path, Runtime: o.RuntimePath, Created: was.Created || !f.exists,
		SetDefault: o.SetDefault}}
	plan.change(f, []byte(after))
	return plan, checkEdit(f.path, before, after, set)
}

// Uninstall plans to take it out again.
func (Podman) Uninstall(_ context.Context, o Options, was Entry) (*Plan, error) {
	f, err := readFile(orDefault(orDefault(o.ConfigFile, was.File), filepath.Join(podmanDropIns, podmanDropIn)))
	if err != nil {
		return nil, err
	}
	after := withoutMarked(string(f.text), podmanDefault())
	for _, other := range append(podmanFiles(f.path), f.path) {
		base, err := readPodman(other)
		if err != nil {
			return nil, err
		}
		if other == f.path {
			base = &file{path: f.path, text: []byte(after)}
		}
		tree := tomlTree{}
		if err := parseTOML(base, &tree); err != nil {
			return nil, err
		}
		if lookup(tree, "engine", "runtime") == RuntimeName && !o.Force {
			return nil, &DependsError{File: other, Setting: podmanDefault()}
		}
	}
	plan := &Plan{}
	switch {
	case !f.exists:
	case after == "" && (was.Created || filepath.Base(f.path) == podmanDropIn):
		plan.remove(f)
	default:
		plan.change(f, []byte(after))
	}
	return plan, nil
}

func podmanDefault() string { return "runtime = " + quote(RuntimeName) }

// podmanFiles are the files that Podman reads besides one, if that is among its own.
func podmanFiles(besides string) []string {
	dir := filepath.Dir(besides)
	if filepath.Base(dir) != filepath.Base(podmanDropIns) {
		return nil
	}
	files := []string{filepath.Join(filepath.Dir(dir), filepath.Base(podmanConfig))}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".conf") {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	return slices.DeleteFunc(files, func(file string) bool { return file == besides })
}

// readPodman reads one of Podman's files, which may be links here: they are not written.
func readPodman(path string) (*file, error) {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	f, err := readFile(path)
	if err != nil {
		return nil, err
	}
	return f, parseTOML(f, &tomlTree{})
}
