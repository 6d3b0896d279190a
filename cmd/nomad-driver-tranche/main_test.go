package main

import (
	"os"
	"testing"

	"github.com/tranche-gpu/tranche/cmd/internal/agent/agenttest"
)

func TestMain(m *testing.M) {
	if agenttest.IsPlugin() {
		main()
		return
	}
	os.Exit(m.Run())
}

// Nobody comes back for a task driver that its agent did not configure yet.
func TestPlugin_EndsWithItsAgent(t *testing.T) {
	plugin := agenttest.Start(t)
	plugin.Lives(t)
	plugin.KillAgent(t)
	plugin.Ends(t)
}
