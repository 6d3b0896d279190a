package device

import (
	"io"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"

	"github.com/tranche-gpu/tranche/internal/blockcheck"
)

// CheckBlock checks the plugin's block of an agent's configuration, in JSON, if the command line says so. As an agent does before
// it starts, it also checks whether the options fit the node's GPUs.
func CheckBlock(args []string, stdin io.Reader, stdout io.Writer) (code int, asked bool) {
	return blockcheck.Check(args, stdin, stdout, configSpec, New(hclog.NewNullLogger(), "").checkBlock)
}

func (p *Plugin) checkBlock(encoded []byte) error {
	for range 2 { // the second is the one that looks at the GPUs
		if err := p.SetConfig(&base.Config{PluginConfig: encoded}); err != nil {
			return err
		}
	}
	return nil
}
