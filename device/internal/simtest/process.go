package simtest

import (
	"os"
	"os/exec"
	"testing"

	"github.com/shoenig/test/must"
)

// InProcess runs a test in a process of its own. A process cannot change the NVML library that it loaded first, nor the node that
// its environment named then.
func InProcess(t *testing.T, fn func(t *testing.T)) {
	t.Helper()
	const child = "TRANCHE_TEST_IN_PROCESS"
	if os.Getenv(child) == t.Name() {
		fn(t)
		return
	}
	command := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run", "^"+t.Name()+"$")
	command.Env = append(os.Environ(), child+"="+t.Name())
	output, err := command.CombinedOutput()
	must.NoError(t, err, must.Sprint(string(output)))
	must.StrContains(t, string(output), "--- PASS: "+t.Name())
}
