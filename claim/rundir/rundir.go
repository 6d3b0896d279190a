// Package rundir writes the files by which programs of one node tell each other what holds until the next boot.
package rundir

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Write puts a value as JSON into a file of the run directory, which it makes where it is missing. Whoever reads the file
// meanwhile sees what was there before or all of this. Everybody may read it.
func Write(runDir, name string, value any) error {
	content, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(runDir, 0o755); err != nil {
		return err
	}
	temporary, err := os.CreateTemp(runDir, "."+name+"-*")
	if err != nil {
		return err
	}
	_, err = temporary.Write(append(content, '\n'))
	err = errors.Join(err, temporary.Chmod(0o644), temporary.Close())
	if err == nil {
		err = os.Rename(temporary.Name(), filepath.Join(runDir, name))
	}
	if err != nil {
		_ = os.Remove(temporary.Name())
	}
	return err
}

// Read reads such a file into a value. Where there is none, the value stays as it is.
func Read(runDir, name string, value any) (found bool, err error) {
	content, err := os.ReadFile(filepath.Join(runDir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, json.Unmarshal(content, value)
}
