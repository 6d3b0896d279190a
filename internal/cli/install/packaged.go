package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// packagedPlugins is where a package has Nomad's plugins, below its prefix. Nomad's plugin directory gets links to them, so
// that an upgrade of the package is one of the plugins.
const packagedPlugins = "lib/tranche/plugins"

// Packaged reports whether the files below a prefix are those of a package.
func Packaged(prefix string) bool {
	_, err := os.Stat(filepath.Join(prefix, packagedPlugins))
	return err == nil
}

// prefixOf is what tranche-runtime is installed below.
func prefixOf(runtimePath string) string { return filepath.Dir(filepath.Dir(runtimePath)) }

// linkPlugins plans links in Nomad's plugin directory to the plugins of a package. A plugin that was copied there before gives
// way to its link.
func (p *Plan) linkPlugins(prefix, pluginDir string) error {
	for _, name := range nomadPlugins {
		target, path := filepath.Join(prefix, packagedPlugins, name), filepath.Join(pluginDir, name)
		was, err := os.Readlink(path)
		if err == nil && was == target {
			continue
		}
		old := &file{path: path, mode: 0o755, uid: 0, gid: 0}
		if was == "" {
			old.text, err = os.ReadFile(path)
			old.exists = err == nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("look at Nomad's plugin directory: %w", err)
		}
		p.Changes = append(p.Changes, Change{file: old, link: target, wasLink: was, program: true})
	}
	return nil
}

// unlinkPlugins plans to remove the links that linkPlugins made.
func (p *Plan) unlinkPlugins(pluginDir string) {
	for _, name := range nomadPlugins {
		path := filepath.Join(pluginDir, name)
		was, err := os.Readlink(path)
		if err == nil && strings.HasSuffix(was, filepath.Join("/", packagedPlugins, name)) {
			p.Changes = append(p.Changes, Change{file: &file{path: path}, wasLink: was, program: true, removes: true})
		}
	}
}

// Linked takes out of the record what a plan has replaced by links.
func (r *Record) Linked(p *Plan) {
	for _, c := range p.Changes {
		if c.link != "" {
			delete(r.Files, c.file.path)
		}
	}
}
