package rootfs

import (
	"path"
	"strings"
)

// Glob lists what a pattern matches, as the shell would. Only names are read, so a match need not lead anywhere.
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

// elements are what is between the slashes. They stay as they are: what ".." means depends on the links before it.
func elements(name string) []string {
	return strings.FieldsFunc(name, func(r rune) bool { return r == '/' })
}

func hasMeta(element string) bool { return strings.ContainsAny(element, `*?[\`) }
