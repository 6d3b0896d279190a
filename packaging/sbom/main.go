// Command sbom writes a bill of materials of programs, in SPDX 2.3, from the build information that the Go command puts into
// them. `make package` runs it.
//
//	sbom VERSION PROGRAM...
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: sbom VERSION PROGRAM...")
		os.Exit(2)
	}
	if err := write(os.Stdout, os.Args[1], os.Getenv("SOURCE_DATE_EPOCH"), os.Args[2:]); err != nil {
		fmt.Fprintf(os.Stderr, "sbom: %v\n", err)
		os.Exit(1)
	}
}
