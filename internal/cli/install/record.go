package install

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"

	"github.com/tranche-gpu/tranche/internal/filelock"
)

// recordName is the file, in the state directory, that says what was installed.
const recordName = "installed.json"

// Entry is what was installed for one engine.
type Entry struct {
	// File is the configuration file, and Created whether there was none before.
	File    string `json:"file,omitempty"`
	Created bool   `json:"created,omitempty"`
	// Runtime is the path that was written.
	Runtime string `json:"runtime,omitempty"`
	// CreatedRuntimes says that Docker's configuration had no runtimes before, SetDefault that we made ours the default,
	// and OldDefault, as JSON, which was it before.
	CreatedRuntimes bool   `json:"created_runtimes,omitempty"`
	SetDefault      bool   `json:"set_default,omitempty"`
	OldDefault      string `json:"old_default,omitempty"`
	// PluginDir is Nomad's.
	PluginDir string `json:"plugin_dir,omitempty"`
}

// Record is what was installed on this node.
type Record struct {
	Engines map[string]Entry `json:"engines"`
	// Files are those that were copied, with the SHA-256 of what was written, in hex.
	Files map[string]string `json:"files"`

	path string
	lock *os.File
}

// OpenRecord reads the record in a state directory and keeps others from changing it until Close.
func OpenRecord(stateDir string) (*Record, error) {
	r := &Record{Engines: map[string]Entry{}, Files: map[string]string{}, path: filepath.Join(stateDir, recordName)}
	if err := r.takeLock(stateDir); err != nil {
		return nil, err
	}
	if err := r.read(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// ReadRecord reads the record without keeping others from changing it.
func ReadRecord(stateDir string) (*Record, error) {
	r := &Record{Engines: map[string]Entry{}, Files: map[string]string{}, path: filepath.Join(stateDir, recordName)}
	return r, r.read()
}

func (r *Record) read() error {
	text, err := os.ReadFile(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, r)
	}
	if err != nil {
		return fmt.Errorf("read what was installed before, %s: %w; run this as root, or move the file away if it is broken",
			r.path, err)
	}
	return nil
}

// takeLock locks the directory, which costs no file of its own.
func (r *Record) takeLock(stateDir string) (err error) {
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return fmt.Errorf("make the state directory: %w; run this as root", err)
	}
	if r.lock, err = os.Open(stateDir); err != nil {
		return fmt.Errorf("open the state directory: %w; run this as root", err)
	}
	if err := filelock.TryExclusive(r.lock); err != nil {
		_ = r.lock.Close()
		return fmt.Errorf("another `tranche install` or `tranche uninstall` runs (%s is locked): %w", stateDir, err)
	}
	return nil
}

// Save writes the record, or removes it where nothing is installed any more.
func (r *Record) Save() error {
	if len(r.Engines) == 0 && len(r.Files) == 0 {
		if err := os.Remove(r.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the record of what was installed: %w", err)
		}
		return nil
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := renameio.WriteFile(r.path, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the record of what was installed: %w", err)
	}
	return nil
}

// RuntimePath is where tranche-runtime was installed, or would be by default.
func (r *Record) RuntimePath() string {
	for path := range r.Files {
		if filepath.Base(path) == filepath.Base(RuntimePath("")) {
			return path
		}
	}
	return RuntimePath(DefaultPrefix)
}

// CheckPrefix makes sure that the programs were installed below a prefix.
func (r *Record) CheckPrefix(prefix string) error {
	if r.RuntimePath() == RuntimePath(prefix) {
		return nil
	}
	return fmt.Errorf("--prefix: tranche-runtime was installed as %s, not below %s; nothing was changed: leave out --prefix "+
		"to uninstall it all the same", r.RuntimePath(), prefix)
}

// Close lets others change the record.
func (r *Record) Close() error { return r.lock.Close() }
