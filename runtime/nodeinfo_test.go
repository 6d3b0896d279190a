package runtime

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// The command that asks NVML is root's, and a container's start waits for it. Whatever it does, that ends.
func TestRefreshByCommand_Ends(t *testing.T) {
	before := refreshTimeout
	refreshTimeout = time.Second
	t.Cleanup(func() { refreshTimeout = before })
	for name, tc := range map[string]struct{ script, want string }{
		"it hangs":                          {"echo $$ >PID; exec sleep 1000", "did not end in time: context deadline exceeded"},
		"it hangs, and what it has started": {"sleep 1000 & echo $! >PID; wait", "did not end in time: context deadline exceeded"},
		"what it has started hangs":         {"sleep 1000 & echo $! >PID; exit 3", "exit status 3"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := NodeConfig(t)
			pid := filepath.Join(t.TempDir(), "pid")
			cfg.CLIPath = filepath.Join(t.TempDir(), "tranche")
			WriteFile(t, cfg.CLIPath, "#!/bin/sh\n"+strings.ReplaceAll(tc.script, "PID", pid)+"\n")
			t.Cleanup(func() { endProcessIn(t, pid) })
			ended := make(chan error, 1)
			go func() { ended <- cfg.refreshByCommand(t.Context(), cfg.nodePlace()) }()
			select {
			case err := <-ended:
				must.ErrorContains(t, err, tc.want)
				must.ErrorContains(t, err, cfg.CLIPath+" node-info refresh")
			case <-time.After(20 * time.Second):
				t.Fatal("it is waited for without end")
			}
		})
	}
}

// endProcessIn ends the process that a file names, if it still runs.
func endProcessIn(t *testing.T, file string) {
	t.Helper()
	content, err := os.ReadFile(file)
	must.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	must.NoError(t, err)
	_ = syscall.Kill(pid, syscall.SIGKILL)
}
