package hooks

import (
	"context"

	"github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook/commands"
	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v3"
)

// runCDIHook is NVIDIA's own hook command, which the CDI specs that we generate call for: it makes the links and the
// loader's cache that the driver's libraries need. With it here a node needs no NVIDIA Container Toolkit.
//
// The packages register a handler that updates the loader's cache in a process of its own; that runs when they are
// initialised, in a tranche-hook that was started under that handler's name.
func runCDIHook(args []string) error {
	command := commands.ConfigureCDIHookCommand(logrus.New(), &cli.Command{Name: "tranche-hook cdi"})
	return command.Run(context.Background(), append([]string{"tranche-hook cdi"}, args...))
}
