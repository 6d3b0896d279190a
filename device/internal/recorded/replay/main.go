// Command replay is a Nomad device plugin that replays a recording, for tests of nodes that had another plugin before. The
// recording is in a file beside the program, with the program's name and ".json".
package main

import (
	"fmt"
	"os"

	"github.com/hashicorp/go-hclog"
	ndevice "github.com/hashicorp/nomad/plugins/device"

	"github.com/tranche-gpu/tranche/device/internal/recorded"
)

func main() {
	self, err := os.Executable()
	if err == nil {
		var recording *recorded.Recording
		if recording, err = recorded.Read(self + ".json"); err == nil {
			ndevice.Serve(recorded.NewPlugin(recording), hclog.Default())
			return
		}
	}
	fmt.Fprintln(os.Stderr, "replay:", err)
	os.Exit(1)
}
