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

// Nobody uses a device plugin after its agent.
func TestPlugin_EndsWithItsAgent(t *testing.T) {
	plugin := agenttest.Start(t)
	plugin.Lives(t)
	plugin.KillAgent(t)
	plugin.Ends(t)
}
