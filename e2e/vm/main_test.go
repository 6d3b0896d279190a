//go:build e2e

package vm_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// build is the repository's build folder.
var build = os.Getenv("TRANCHE_BUILD")

// system is a release of Debian, and the suite that its kernel is from.
type system struct{ name, release, kernel string }

// systems are what the machines run: those that Debian's archives offer.
var systems = []system{
	{"debian-12", "bookworm", "bookworm"},
	{"debian-13", "trixie", "trixie"},
	{"debian-13-backports", "trixie", "trixie-backports"},
}

// enforcements say what enforces the limits. Each check runs with each of them, on a machine of its own.
var enforcements = []string{"library", "driver"}

// checks run one after another on one machine. The short test leaves out those that are long, and machines whose driver enforces
// limits those that have nothing to do with that.
var checks = []struct {
	name         string
	run          func(*testing.T, *machine)
	long, driver bool
}{
	{"Limit", checkLimit, false, true},
	{"Shares", checkShares, true, true},
	{"Options", checkOptions, true, false},
	{"OOM", checkOOM, true, false},
	{"Exec", checkExec, true, false},
	{"Stats", checkStats, true, false},
	{"Cgroupns", checkCgroupns, true, true},
	{"Script", checkScript, true, false},
	{"Engines", installEngines, true, true},
	{"Docker", checkEngine(docker), true, true},
	{"Podman", checkEngine(podman), true, true},
	{"Reload", checkReload, true, true},
	{"Restarts", checkRestarts, true, true},
	{"Governor", checkGovernor, true, false},
	{"Boots", checkBoots, true, true},
	{"Upgrade", checkUpgrade, true, false},
	{"Purge", checkPurge, true, false},
}

func TestMain(m *testing.M) {
	if build == "" {
		fmt.Fprintln(os.Stderr, "run these tests with: make test-vm")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// TestVM boots each system and runs the checks on it. With -short it is one system and the checks that take no time.
func TestVM(t *testing.T) {
	for _, system := range systems {
		for _, enforcement := range enforcements {
			t.Run(system.name+"/"+enforcement, func(t *testing.T) {
				if testing.Short() && system.name != systems[0].name {
					t.Skip("skipped by -short")
				}
				m := newMachine(t, system, enforcement)
				for _, check := range checks {
					if (!check.long || !testing.Short()) && (check.driver || enforcement != "driver") {
						t.Run(check.name, func(t *testing.T) { check.run(t, m) })
					}
				}
			})
		}
	}
}

// deadline is how long a single step may take: far more than it does, since emulation is slow and machines are noisy.
func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// repository is the path of a file in the repository.
func repository(path string) string { return filepath.Join(build, "..", path) }

func mustGlob(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	must.NoError(t, err)
	must.SliceLen(t, 1, found, must.Sprint(pattern))
	return found[0]
}
