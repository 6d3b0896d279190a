package spec

import (
	"fmt"
	"io"

	"github.com/hashicorp/nomad/plugins/base"

	"github.com/tranche-gpu/tranche/internal/blockcheck"
)

// CheckBlock checks the plugin's block of an agent's configuration, in JSON, if the command line says so.
func CheckBlock(args []string, stdin io.Reader, stdout io.Writer) (code int, asked bool) {
	return blockcheck.Check(args, stdin, stdout, ConfigSpec, func(encoded []byte) error {
		var config Config
		if err := base.MsgPackDecode(encoded, &config); err != nil {
			return fmt.Errorf("read the plugin's configuration: %w", err)
		}
		return config.Check()
	})
}
