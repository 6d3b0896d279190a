// Package rundir reads and writes the files in which programs of one node exchange state until the next boot.
package rundir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// Write writes a value as JSON into a file of the run directory, which it creates if it is missing. Readers see the former
// content or all of the new one. The file is readable for everybody.
func Write(runDir, name string, value any) error {
	content, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(runDir, 0o755); err != nil {
		return err
	}
	err = renameio.WriteFile(filepath.Join(runDir, name), append(content, '\n'), 0o644,
		renameio.WithTempDir(runDir), renameio.WithStaticPermissions(0o644))
	if errors.Is(err, fs.ErrExist) { // as os.Rename answers for a directory
		return errors.New("it is a directory: remove it")
	}
	return err
}

// Read reads such a file into a value. If there is none, it leaves the value as it is.
func Read(runDir, name string, value any) (found bool, err error) {
	content, err := os.ReadFile(filepath.Join(runDir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if errors.Is(err, unix.EISDIR) {
		err = fmt.Errorf("%w: remove it", err)
	}
	if err != nil {
		return false, err
	}
	return true, json.Unmarshal(content, value)
}

// CheckFormat returns an error for a file whose format version the reader does not support.
func CheckFormat(found, known int) error {
	if found != known {
		return fmt.Errorf("its format is %d, and this program knows format %d", found, known)
	}
	return nil
}
