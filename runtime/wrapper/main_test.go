package wrapper_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tranche-gpu/tranche/device/contextcost"
	"github.com/tranche-gpu/tranche/device/mps"
	"github.com/tranche-gpu/tranche/hooks"
	"github.com/tranche-gpu/tranche/internal/cli"
	"github.com/tranche-gpu/tranche/internal/proc/proctest"
	"github.com/tranche-gpu/tranche/internal/version"
	"github.com/tranche-gpu/tranche/runtime/wrapper"
)

// TestMain lets the test binary stand in for our own binaries, under whose names the tests link to it.
func TestMain(m *testing.M) {
	contextcost.ChildMain() // under its own name, the child would run all tests here
	mps.ChildMain()
	switch filepath.Base(os.Args[0]) {
	case "tranche-runtime":
		if version.Print(os.Args, version.RuntimeFlag, "tranche-runtime", os.Stdout) {
			proctest.Exit(0)
		}
		proctest.Exit(wrapper.Main(os.Args, os.Environ(), os.Stderr))
	case "tranche-hook":
		proctest.Exit(hooks.Main(os.Args, os.Stdin, os.Stderr))
	case "tranche-hook-that-records":
		recordEnvironment(filepath.Join(filepath.Dir(os.Args[3]), "environ-ours-"+os.Args[1])) // beside the state directory
		proctest.Exit(hooks.Main(os.Args, os.Stdin, os.Stderr))
	case "hook-that-records":
		recordEnvironment(os.Args[1])
		proctest.Exit(0)
	case "tranche":
		proctest.Exit(cli.Main("v0.0.0-test", os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// recordEnvironment writes down this process's environment, each entry with a zero byte behind it.
func recordEnvironment(file string) {
	if err := os.WriteFile(file, []byte(strings.Join(os.Environ(), "\x00")+"\x00"), 0o644); err != nil {
		proctest.Exit(1)
	}
}
