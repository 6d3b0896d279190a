package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook/commands"
	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	nvcli "github.com/urfave/cli/v3"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/runtime/edit"
	"github.com/tranche-gpu/tranche/runtime/gpuinfo/generate"
)

// maxStateBytes bounds what a runtime hands to a hook. A container's annotations are part of its state.
const maxStateBytes = 4 << 20

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
			if len(args) > 0 && args[0] == edit.HookBatch {
				return cdiHooks(cmd.Context(), args[1:])
			}
			return cdiHook(cmd.Context(), args)
		},
	}
}

func cdiHook(ctx context.Context, args []string) error {
	const name = "tranche " + generate.HookCommand
	command := commands.ConfigureCDIHookCommand(logrus.New(), &nvcli.Command{Name: name})
	return command.Run(ctx, append([]string{name}, args...))
}

// cdiHooks runs several hooks, each an array of JSON, one after another: a process for each would take longer than what
// they do.
func cdiHooks(ctx context.Context, calls []string) error {
	state, err := keepState(os.Stdin)
	if err != nil {
		return err
	}
	defer state.Close()
	// The hooks read the container's state from there, each from its beginning.
	defer func(stdin *os.File) { os.Stdin = stdin }(os.Stdin)
	os.Stdin = state
	for _, call := range calls {
		var args []string
		if err := json.Unmarshal([]byte(call), &args); err != nil {
			return fmt.Errorf("read the hook %q: %w", call, err)
		}
		if _, err := state.Seek(0, io.SeekStart); err != nil {
			return fmt.Errorf("read the container's state once more: %w", err)
		}
		if err := cdiHook(ctx, args); err != nil {
			return fmt.Errorf("hook %q: %w", args, err)
		}
	}
	return nil
}

// keepState puts what comes from stdin into a file in memory.
func keepState(stdin io.Reader) (*os.File, error) {
	fd, err := unix.MemfdCreate("container-state", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("keep the container's state: %w", err)
	}
	file := os.NewFile(uintptr(fd), "container-state")
	n, err := io.Copy(file, io.LimitReader(stdin, maxStateBytes+1))
	if err == nil && n > maxStateBytes {
		err = fmt.Errorf("it is larger than %d MiB", maxStateBytes>>20)
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("keep the container's state: %w", err)
	}
	return file, nil
}
