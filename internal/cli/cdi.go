package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"github.com/tranche-gpu/tranche/internal/size"
	"github.com/tranche-gpu/tranche/runtime"
	"github.com/tranche-gpu/tranche/runtime/request"
)

// defaultCDIDir is where programs leave CDI specifications that are made again at each boot.
const defaultCDIDir = "/var/run/cdi"

// toStdout is the --output that prints.
const toStdout = "-"

type cdiOptions struct {
	driverRoot, sliceMemory, output string
}

func (a *app) cdiCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cdi",
		Short: "CDI devices that request fractions of GPUs",
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(a.cdiGenerateCommand())
	return cmd
}

func (a *app) cdiGenerateCommand() *cobra.Command {
	var o cdiOptions
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Write the CDI specification of the devices tranche.dev/slice=…",
		Long: `Write the CDI specification of the devices tranche.dev/slice=…, one for each multiple of a slice that fits on the
largest GPU of this node. A container with the device tranche.dev/slice=8GiB requests 8 GiB.

Run this at each boot, which empties /var/run/cdi.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.generateCDI(cmd.Context(), o) },
	}
	cmd.Flags().StringVar(&o.driverRoot, "driver-root", runtime.DefaultDriverRoot,
		"directory `tree` with the GPU driver's libraries")
	cmd.Flags().StringVar(&o.sliceMemory, "slice-memory", "1GiB",
		"`size` of a slice")
	cmd.Flags().StringVar(&o.output, "output", filepath.Join(defaultCDIDir, request.CDISpecFile),
		"`file` to write, \"-\" to print")
	return cmd
}

func (a *app) generateCDI(ctx context.Context, o cdiOptions) error {
	sliceBytes, err := size.ParseGPU(o.sliceMemory)
	if err != nil {
		return fmt.Errorf("--slice-memory: %w", err)
	}
	node, err := a.readGPUs(ctx, o.driverRoot)
	if err != nil {
		return err
	}
	most := 0
	for _, g := range allGPUs(node) {
		if g.MIG.Enabled { // only its instances can be used
			continue
		}
		most = max(most, int(g.UsableBytes()/sliceBytes))
	}
	if most == 0 {
		return errors.New("this node has no GPU with room for a slice of " + size.Format(sliceBytes) +
			", so there is no device to describe")
	}
	spec, err := request.CDISpec(sliceBytes, most)
	if err != nil {
		return fmt.Errorf("describing the devices: %w", err)
	}
	content, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return err
	}
	return a.writeCDI(o.output, append(content, '\n'))
}

func (a *app) writeCDI(output string, content []byte) error {
	if output == toStdout {
		_, err := a.stdout.Write(content)
		return err
	}
	err := os.MkdirAll(filepath.Dir(output), 0o755)
	if err == nil {
		err = renameio.WriteFile(output, content, 0o644)
	}
	if err != nil {
		return fmt.Errorf("--output: write the CDI specification: %w; name a file, or \"-\" to print", err)
	}
	fmt.Fprintf(a.stdout, "Wrote %s.\n", output)
	return nil
}
