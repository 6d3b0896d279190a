package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/internal/blockcheck"
	"github.com/tranche-gpu/tranche/internal/size"
	"github.com/tranche-gpu/tranche/runtime"
)

// blockPatience bounds a plugin's check of its block, for which it may have to wait for the driver.
const blockPatience = 30 * time.Second

// pluginOptions has a plugin check its own block, as it does when the agent starts.
func pluginOptions(name string) func(context.Context, *Node) finding {
	return func(ctx context.Context, n *Node) finding {
		config, err := n.nomadConfig()
		if err != nil || config == nil || config.PluginDir == "" {
			return ok(n.path(nomadDir), "no agent to look at")
		}
		block, file := config.Block(name)
		program := filepath.Join(n.path(config.PluginDir), name)
		if executable(program) != nil {
			return ok(program, "absent, so its options are not checked")
		}
		if file == "" {
			file = config.Dir
		}
		wrong, err := checkBlock(ctx, program, block)
		switch {
		case err != nil:
			return warning(file, fmt.Sprintf("the options of %s were not checked: %v", name, err), "see the versions above: another "+
				"version of the plugin does not check them")
		case wrong != "":
			return fault(file, wrong, "correct the block of "+name+": the agent does not start with it")
		}
		return ok(file, "%s accepts its options", name)
	}
}

// checkBlock returns what a plugin says is wrong with a block.
func checkBlock(ctx context.Context, program string, block map[string]any) (wrong string, err error) {
	encoded, err := json.Marshal(block)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, blockPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, blockcheck.Flag)
	cmd.WaitDelay = pipePatience
	cmd.Stdin = bytes.NewReader(encoded)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == blockcheck.Wrong {
		return strings.TrimSpace(string(out)), nil
	}
	return "", err
}

// nomadSliceMemory compares the size of a slice that Nomad counts with what everybody else goes by.
func nomadSliceMemory(ctx context.Context, n *Node) finding {
	config, err := n.nomadConfig()
	if err != nil || config == nil {
		return ok(n.path(nomadDir), "no agent to look at")
	}
	block, file := config.Block(nomadPluginNames[0])
	if file == "" {
		return ok(config.Dir, "the device plugin has no block")
	}
	agents, err := sliceMemory(block)
	if err != nil {
		return ok(file, "not compared") // the check of its options tells
	}
	if agents != n.Config.SliceBytes {
		return warning(file, fmt.Sprintf("slice_memory is %s for Nomad, and %s in %s: containers without Nomad are given slices of "+
			"another size", size.Format(agents), size.Format(n.Config.SliceBytes), n.ConfigFile), "set slice_memory to the same in both")
	}
	claims, _, err := n.claims(ctx)
	if err != nil {
		return ok(file, "not compared with the ledger, which cannot be read")
	}
	for _, c := range claims {
		if c.Mode == claim.ModeSlice && c.SliceBytes != 0 && c.SliceBytes != agents {
			return warning(file, fmt.Sprintf("slice_memory is %s, and claim %s in the ledger has slices of %s", size.Format(agents), c.ID,
				size.Format(c.SliceBytes)), "the claim is from before slice_memory was changed: its GPU offers no slices of the new "+
				"size until it ends; stop its container, or release it: tranche claim release "+c.ID)
		}
	}
	return ok(file, "%s for Nomad, containers without it, and all claims", size.Format(agents))
}

// sliceMemory is what a block of the device plugin says of it, in bytes.
func sliceMemory(block map[string]any) (uint64, error) {
	text, set := block["slice_memory"].(string)
	if !set {
		return runtime.DefaultSliceBytes, nil
	}
	return size.ParseGPU(text)
}
