package cli

import (
	"github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook/commands"
	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	nvcli "github.com/urfave/cli/v3"

	"tranche.dev/tranche/runtime/nodeinfo/generate"
)

// cdiHookCommand is NVIDIA's own hook command, which the CDI specs that we generate call for: it makes the links and the
// loader's cache that the driver's libraries need. With it here a node needs no NVIDIA Container Toolkit.
//
// The packages register a handler that updates the loader's cache in a process of its own; that runs when they are
// initialised, in a process of this program that was started under that handler's name.
func (a *app) cdiHookCommand() *cobra.Command {
	return &cobra.Command{
		Use:                generate.HookCommand + " HOOK …",
		Short:              "A hook of NVIDIA's, as CDI specifications call for them",
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			const name = "tranche " + generate.HookCommand
			command := commands.ConfigureCDIHookCommand(logrus.New(), &nvcli.Command{Name: name})
			return command.Run(cmd.Context(), append([]string{name}, args...))
		},
	}
}
