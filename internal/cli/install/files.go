package install

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// nodePrograms go into the prefix's bin.
var nodePrograms = []string{"tranche", "tranche-runtime", "tranche-hook"}

// Files says which files to install, and where.
type Files struct {
	// From is a build folder, with bin and lib in it.
	From string
	// Prefix is what the programs and libraries go below: Prefix/bin and Prefix/lib/tranche.
	Prefix string
	// PluginDir is Nomad's plugin directory; "" installs no plugins.
	PluginDir string
	// ConfigFile is the configuration of tranche-runtime, which is written only if there is none.
	ConfigFile string
}

// DefaultPrefix is what programs and libraries are installed below.
const DefaultPrefix = "/usr"

// RuntimePath is where tranche-runtime is below a prefix.
func RuntimePath(prefix string) string { return filepath.Join(prefix, "bin/tranche-runtime") }

// Install plans the copies. Each file is put in place by rename: the programs and libraries that run stay as they are
// until they end.
func (f Files) Install() (*Plan, error) {
	plan := &Plan{}
	for _, name := range nodePrograms {
		if err := plan.copyProgram(filepath.Join(f.From, "bin", name), filepath.Join(f.Prefix, "bin", name)); err != nil {
			return nil, err
		}
	}
	for _, name := range nomadPlugins {
		if f.PluginDir == "" {
			break
		}
		if err := plan.copyProgram(filepath.Join(f.From, "bin", name), filepath.Join(f.PluginDir, name)); err != nil {
			return nil, err
		}
	}
	for _, file := range shadow.Files() {
		from := filepath.Join(f.From, "lib", file)
		if err := shadow.Check(from, filepath.Base(file)); err != nil {
			return nil, fmt.Errorf("--from: %w", err)
		}
		if err := plan.copyFile(from, filepath.Join(f.Prefix, "lib/tranche", file), 0o644); err != nil {
			return nil, err
		}
	}
	return plan, plan.writeConfig(f)
}

func (p *Plan) copyProgram(from, to string) error {
	info, err := os.Stat(from)
	if err == nil && info.Mode().Perm()&0o111 == 0 {
		err = fmt.Errorf("%s is not executable", from)
	}
	if err != nil {
		return fmt.Errorf("--from: %w; it has to be a build folder, with bin and lib in it (`make build`)", err)
	}
	return p.copyFile(from, to, 0o755)
}

// copyFile plans a copy that belongs to root: what runs as root must not be anybody else's to change.
func (p *Plan) copyFile(from, to string, mode fs.FileMode) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("--from: %w", err)
	}
	old := &file{path: to, mode: mode, uid: 0, gid: 0}
	switch before, err := os.ReadFile(to); {
	case err == nil && string(before) == string(text):
		return nil
	case err == nil:
		old.exists, old.text = true, before
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("look at what is installed: %w", err)
	}
	p.Changes = append(p.Changes, Change{file: old, after: text, program: true})
	return nil
}

//go:embed config.toml
var configTemplate string

// writeConfig plans the configuration of tranche-runtime where there is none.
func (p *Plan) writeConfig(f Files) error {
	old, err := readFile(f.ConfigFile)
	if err != nil || old.exists {
		return err
	}
	text := strings.NewReplacer("@PREFIX@", f.Prefix, "@RUNTIMES@", quote(nextRuntimes())).Replace(configTemplate)
	p.change(old, []byte(text))
	return nil
}

// nextRuntimes are the runtimes that do the work: runc where there is one, as for most engines, else crun. They go by
// their paths, since not every engine calls runtimes with a PATH that leads to them.
func nextRuntimes() []any {
	var found []any
	for _, name := range []string{"runc", "crun"} {
		if path, err := exec.LookPath(name); err == nil {
			found = append(found, path)
		}
	}
	if found == nil {
		return []any{"runc", "crun"}
	}
	return found
}

// ownDirs returns the directories of a file that are Tranche's own: one called tranche, and what is in it.
func ownDirs(path string) []string {
	dir := filepath.Dir(path)
	switch {
	case filepath.Base(dir) == "tranche":
		return []string{dir}
	case filepath.Base(filepath.Dir(dir)) == "tranche":
		return []string{dir, filepath.Dir(dir)}
	}
	return nil
}

// UninstallFiles plans to remove what the record says was copied. A file that somebody has changed since then stays, and so does one
// that a package has replaced, which may have the same content.
func UninstallFiles(r *Record) (*Plan, error) {
	plan := &Plan{}
	prefix := prefixOf(r.RuntimePath())
	packaged := Packaged(prefix)
	for path, sum := range r.Files {
		if packaged && strings.HasPrefix(path, prefix+"/") {
			continue
		}
		plan.Dirs = append(plan.Dirs, ownDirs(path)...)
		text, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, fmt.Errorf("look at what is installed: %w", err)
		case digest(text) != sum:
			plan.note("%s was changed since it was installed, and stays", path)
		default:
			plan.Changes = append(plan.Changes, Change{
				file: &file{path: path, exists: true, text: text, mode: 0o755, uid: 0, gid: 0}, program: true, removes: true,
			})
		}
	}
	// What lies in another directory goes first.
	slices.SortFunc(plan.Dirs, func(a, b string) int { return len(b) - len(a) })
	return plan, nil
}

// Written adds to the record what a plan of Files has written.
func (r *Record) Written(p *Plan) {
	for _, c := range p.Changes {
		if c.removes {
			delete(r.Files, c.file.path)
		} else {
			r.Files[c.file.path] = digest(c.after)
		}
	}
}

func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
