package rootfs

import (
	"path"
	"strings"
)

// Glob lists the paths that match a pattern, as the shell does. It reads names only, so a match may be a dangling link.
func (r *Root) Glob(pattern string) ([]string, error) {
	matches := []string{"/"}
	for _, element := range elements(pattern) {
		var next []string
		for _, dir := range matches {
			more, err := r.match(dir, element)
			if err != nil {
				return nil, err
			}
			next = append(next, more...)
		}
		matches = next
	}
	return matches, nil
}

func (r *Root) match(dir, element string) ([]string, error) {
	if !hasMeta(element) {
		return []string{strings.TrimSuffix(dir, "/") + "/" + element}, nil
	}
	names, err := r.Names(dir)
	if Unreachable(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var matches []string
	for _, name := range names {
		hidden := name[0] == '.' && element[0] != '.'
		if ok, err := path.Match(element, name); err == nil && ok && !hidden {
			matches = append(matches, strings.TrimSuffix(dir, "/")+"/"+name)
		}
	}
	return matches, nil
}

// elements splits a path at its slashes. It does not clean the path: what ".." means depends on the links before it.
func elements(name string) []string {
	return strings.FieldsFunc(name, func(r rune) bool { return r == '/' })
}

func hasMeta(element string) bool { return strings.ContainsAny(element, `*?[\`) }
