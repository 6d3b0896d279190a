package blockcheck

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
)

// Flag has a plugin's program read a block from its input, in JSON, and exit.
const Flag = "--check-config"

// Exit codes of a program with Flag. A program that does not know it has others.
const (
	Right = 0
	// Wrong means that an error in the block was printed.
	Wrong = 3
)

// Check checks a block if the command line has Flag and nothing else, and returns the exit code and whether it has. The check is
// of what Nomad would give the plugin, encoded.
func Check(args []string, stdin io.Reader, stdout io.Writer, schema *hclspec.Spec, check func(encoded []byte) error) (int, bool) {
	if !slices.Equal(args[1:], []string{Flag}) {
		return 0, false
	}
	if err := checkBlock(stdin, schema, check); err != nil {
		fmt.Fprintln(stdout, err)
		return Wrong, true
	}
	return Right, true
}

func checkBlock(stdin io.Reader, schema *hclspec.Spec, check func([]byte) error) error {
	var block map[string]any
	if err := json.NewDecoder(stdin).Decode(&block); err != nil {
		return fmt.Errorf("read the block: %w", err)
	}
	decoded, err := Decode(schema, block)
	if err != nil {
		return err
	}
	var encoded []byte
	if err := base.MsgPackEncode(&encoded, decoded); err != nil {
		return fmt.Errorf("encode the block: %w", err)
	}
	return check(encoded)
}
