package runtime_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"tranche.dev/tranche/cli"
	"tranche.dev/tranche/device/contextcost"
	"tranche.dev/tranche/hooks"
	"tranche.dev/tranche/runtime"
)

// TestMain lets the test binary stand in for our own binaries, under whose names the tests link to it.
func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case "tranche-runtime":
		if runtime.PrintVersion(os.Args, "v0.0.0-test", os.Stdout) {
			exit(0)
		}
		exit(runtime.Main(os.Args, os.Environ(), os.Stderr))
	case "tranche-hook":
		exit(hooks.Main(os.Args, os.Stdin, os.Stderr))
	case "tranche":
		contextcost.ChildMain()
		exit(cli.Main("v0.0.0-test", os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// exit ends the process without the second that the race detector would have it wait.
func exit(status int) {
	_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(status), 0, 0)
}
