// Package rootfile opens files in directories that others write to.
package rootfile

import (
	"os"

	"golang.org/x/sys/unix"
)

// Open opens a file beneath dir for reading. Links in its path cannot lead out of dir, and opening a FIFO does not wait for
// a writer, which might never come.
func Open(dir, name string) (*os.File, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
}
