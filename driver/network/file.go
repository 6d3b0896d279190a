package network

import (
	"errors"
	"os"
	"path/filepath"
)

// replaceFile writes a file into a task's directory, which everybody may read and the owner write, and returns its path. What is there may be a
// link that an earlier run of the task left, to a file of the host's: it is replaced.
//
// It does not sync the file. Each start writes it again, so nothing is lost with one that a crash of the machine leaves
// empty; and a busy disk takes longer for it than all else before the container is made.
func replaceFile(dir, name, text string, owner int) (path string, err error) {
	file, err := os.CreateTemp(dir, "."+name+"-*")
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(file.Name()))
		}
	}()
	_, err = file.WriteString(text)
	err = errors.Join(err, file.Chmod(0o644), file.Chown(owner, owner), file.Close())
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, name)
	return path, os.Rename(file.Name(), path)
}
