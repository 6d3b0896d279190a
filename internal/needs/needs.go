// Package needs skips tests where the machine cannot run them. `make test` sets TRANCHE_REQUIRE_ROOT=1, and no test is
// skipped by it: what is missing then fails the test. The package also says how much of a long matrix is tested.
package needs

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// That skips the test unless ok, or fails it if all tests have to run. The text says what the test needs, and what for.
func That(t testing.TB, ok bool, what string) {
	t.Helper()
	switch {
	case ok:
	case os.Getenv("TRANCHE_REQUIRE_ROOT") == "1":
		t.Fatal("needed: " + what)
	default:
		t.Skip("needed: " + what)
	}
}

// Root is That for tests that need root.
func Root(t testing.TB, why string) {
	t.Helper()
	That(t, os.Geteuid() == 0, "root, "+why)
}

// Sandbox is That for tests that change what is outside of their directories: build/e2e/sandbox runs them in namespaces of
// their own.
func Sandbox(t testing.TB, why string) {
	t.Helper()
	That(t, os.Getenv("TRANCHE_SANDBOX") == "1" && os.Getenv("TRANCHE_BUILD") != "", "build/e2e/sandbox and TRANCHE_BUILD, "+why)
}

// Programs is That for tests that start containers: root and these programs, by name or path. They take longer than others,
// and are skipped by -short.
func Programs(t testing.TB, why string, programs ...string) {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped by -short: " + why)
	}
	var missing []string
	if os.Geteuid() != 0 {
		missing = append(missing, "root")
	}
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, program)
		}
	}
	That(t, len(missing) == 0, strings.Join(missing, ", ")+", "+why)
}
