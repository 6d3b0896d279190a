// Package rundir writes the files by which programs of one node tell each other what holds until the next boot.
package rundir

import (
	"errors"
	"os"
	"path/filepath"
)

// Write puts a file into the run directory, which it makes where it is missing. Whoever reads the file meanwhile sees what
// was there before or all of this. Everybody may read it.
func Write(runDir, name string, content []byte) error {
	if err := os.MkdirAll(runDir, 0o755); err != nil {
		return err
	}
	temporary, err := os.CreateTemp(runDir, "."+name+"-*")
	if err != nil {
		return err
	}
	_, err = temporary.Write(content)
	err = errors.Join(err, temporary.Chmod(0o644), temporary.Close())
	if err == nil {
		err = os.Rename(temporary.Name(), filepath.Join(runDir, name))
	}
	if err != nil {
		_ = os.Remove(temporary.Name())
	}
	return err
}
