package install

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// refuseDockerFlags looks at the dockerd that runs: one that is given runtimes on its command line does not start any
// more once its configuration file has some, too.
func refuseDockerFlags() error {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // ended meanwhile
		}
		args := strings.Split(string(bytes.TrimRight(text, "\x00")), "\x00")
		if filepath.Base(args[0]) != "dockerd" {
			continue
		}
		for _, arg := range args[1:] {
			name, _, _ := strings.Cut(arg, "=")
			if name == "--add-runtime" || name == "--default-runtime" {
				return fmt.Errorf("dockerd (process %s) runs with %s on its command line, and would not start with runtimes "+
					"in its configuration file as well: move that to the file first; nothing was changed",
					filepath.Base(filepath.Dir(file)), arg)
			}
		}
	}
	return nil
}
