package spec

import (
	"io"

	"github.com/tranche-gpu/tranche/internal/blockcheck"
)

// CheckBlock checks the plugin's block of an agent's configuration, in JSON, if the command line says so.
func CheckBlock(args []string, stdin io.Reader, stdout io.Writer) (code int, asked bool) {
	return blockcheck.Check(args, stdin, stdout, ConfigSpec, func(encoded []byte) error {
		config, err := DecodeConfig(encoded)
		if err != nil {
			return err
		}
		return config.Check()
	})
}
