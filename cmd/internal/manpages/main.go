// Command manpages writes a manual page for each command of tranche into a directory. `make man` runs it.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra/doc"

	"github.com/tranche-gpu/tranche/internal/cli"
	"github.com/tranche-gpu/tranche/internal/version"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: manpages DIRECTORY")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintf(os.Stderr, "manpages: %v\n", err)
		os.Exit(1)
	}
}

// write dates the pages by SOURCE_DATE_EPOCH, or today.
func write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	command := cli.Command(version.Version)
	command.DisableAutoGenTag = true
	header := &doc.GenManHeader{Section: "1", Source: "Tranche " + version.Version, Manual: "Tranche"}
	return doc.GenManTree(command, header, dir)
}
