// Package namedfile words errors about files that options name: the option, the cause, and the remedy where a file is missing.
package namedfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Error returns an error of using the file that an option names; nil if there is none.
func Error(option string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: %w; create it or correct the path", option, err)
	}
	return fmt.Errorf("%s: %w", option, err)
}

// Check returns an error unless there is the file that an option names. It is for files that libraries read, whose errors name no
// option. An empty path is that of no file.
func Check(option, path string) error {
	if path == "" {
		return nil
	}
	_, err := os.Stat(path)
	return Error(option, err)
}
