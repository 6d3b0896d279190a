package runtime

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

// The command that asks NVML is root's, and a container's start waits for it. Whatever it does, that ends.
func TestRefreshByCommand_Ends(t *testing.T) {
	before := refreshTimeout
	refreshTimeout = 2 * time.Second
	t.Cleanup(func() { refreshTimeout = before })
	const late = "did not end in time: context deadline exceeded"
	for name, tc := range map[string]struct {
		script, want string
		goesOn       bool // what the command has started
	}{
		"it hangs":                          {"echo $$ >PID; exec sleep 1000", late, false},
		"it hangs, and what it has started": {"sleep 1000 & echo $! >PID; wait", late, false},
		"what it has left behind hangs":     {"sleep 1000 & echo $! >PID; exit 3", "exit status 3", true},
		"that has a group of its own":       {"setsid sleep 1000 & echo $! >PID; wait", late, true},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := nodeConfig(t)
			pid := filepath.Join(t.TempDir(), "pid")
			cfg.CLIPath = filepath.Join(t.TempDir(), "tranche")
			runtimetest.WriteFile(t, cfg.CLIPath, "#!/bin/sh\n"+strings.ReplaceAll(tc.script, "PID", pid)+"\n")
			t.Cleanup(func() { _ = syscall.Kill(pidIn(t, pid), syscall.SIGKILL) })
			ended := make(chan error, 1)
			go func() {
				ended <- cfg.refreshByCommand(t.Context(), cfg.Place())
			}()
			select {
			case err := <-ended:
				must.ErrorContains(t, err, tc.want)
				must.ErrorContains(t, err, cfg.CLIPath+" node-info refresh")
				must.Eq(t, tc.goesOn, runs(pidIn(t, pid)))
			case <-time.After(time.Minute):
				t.Fatal("it is waited for without end")
			}
		})
	}
}

// What the command says is wrong is not that it is absent.
func TestRefreshByCommand_Remedy(t *testing.T) {
	cfg := nodeConfig(t)
	cfg.CLIPath = filepath.Join(t.TempDir(), "tranche")
	must.ErrorContains(t, cfg.refreshByCommand(t.Context(), cfg.Place()), "install the command tranche there, or set cli_path")
	runtimetest.WriteFile(t, cfg.CLIPath, "#!/bin/sh\necho Driver Not Loaded >&2; exit 1\n")
	must.StrHasSuffix(t, "exit status 1: Driver Not Loaded", cfg.refreshByCommand(t.Context(), cfg.Place()).Error())
}

// pidIn is the process that a file names.
func pidIn(t *testing.T, file string) int {
	t.Helper()
	content, err := os.ReadFile(file)
	must.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	must.NoError(t, err)
	return pid
}

// runs reports whether a process has not been ended, or is ending.
func runs(pid int) bool {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	pending := regexp.MustCompile(`(?m)^(State:\t[ZX]|(Sig|Shd)Pnd:\t.*[1-9a-f])`) // SIGKILL is all that is sent here
	return err == nil && !pending.Match(status)
}
