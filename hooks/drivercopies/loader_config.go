package drivercopies

import (
	"path"
	"strings"

	"github.com/tranche-gpu/tranche/runtime/rootfs"
)

// Bounds of the loader's configuration. Images usually have some ten files of a line or two.
const (
	maxConfigBytes = 256 << 10
	maxConfigFiles = 1000
	maxConfigDirs  = 10_000
)

// loaderConfig lists the directories in the image's ld.so.conf (ldconfig(8)) and in musl's configuration. Relative ones
// start in the working directory.
func loaderConfig(root *rootfs.Root, cwd string) ([]string, error) {
	c := &config{root: root, read: map[string]bool{}}
	if err := c.add("/etc/ld.so.conf"); err != nil {
		return nil, err
	}
	musl, err := root.Glob("/etc/ld-musl-*.path")
	if err != nil {
		return nil, err
	}
	for _, file := range musl {
		if err := c.add(file); err != nil {
			return nil, err
		}
	}
	for i, dir := range c.dirs {
		c.dirs[i] = from(cwd, dir)
	}
	return c.dirs, nil
}

// config collects directories over included files.
type config struct {
	root *rootfs.Root
	read map[string]bool
	dirs []string
}

func (c *config) add(file string) error {
	if c.read[file] {
		return nil
	}
	c.read[file] = true
	if len(c.read) > maxConfigFiles {
		return rootfs.ErrTooMuch
	}
	content, err := c.root.ReadFile(file, maxConfigBytes)
	if rootfs.Unreachable(err) {
		return nil
	}
	if err != nil {
		return err
	}
	dirs, patterns := parseConfig(string(content))
	if c.dirs = append(c.dirs, dirs...); len(c.dirs) > maxConfigDirs {
		return rootfs.ErrTooMuch
	}
	return c.include(file, patterns)
}

// parseConfig returns the directories in one file, each without the kind of library that may follow after "=", and the
// patterns of included files. For ldconfig today a line is one directory; for older versions and for musl it is a list. Both
// readings are returned.
func parseConfig(content string) (dirs, patterns []string) {
	for line := range strings.Lines(content) {
		line, _, _ = strings.Cut(line, "#")
		line = strings.Trim(line, configBlanks)
		fields := strings.FieldsFunc(line, splitter(configBlanks+":,"))
		if len(fields) > 1 && fields[0] == "include" {
			patterns = append(patterns, fields[1:]...)
			continue
		}
		if len(fields) > 1 {
			fields = append(fields, line)
		}
		for _, field := range fields {
			dir, _, _ := strings.Cut(field, "=")
			if dir = strings.TrimRight(dir, configBlanks); dir != "" {
				dirs = append(dirs, dir)
			}
		}
	}
	return dirs, patterns
}

const configBlanks = " \t\r\n\v\f"

func (c *config) include(file string, patterns []string) error {
	for _, pattern := range patterns {
		included, err := c.root.Glob(from(path.Dir(file), pattern))
		if err != nil {
			return err
		}
		for _, one := range included {
			if err := c.add(one); err != nil {
				return err
			}
		}
	}
	return nil
}
