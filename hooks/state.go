package hooks

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Bounds of what a runtime hands to a hook. A container's annotations are part of its state.
const (
	maxStateBytes = 4 << 20
	maxIDBytes    = 1024
)

// readState reads a container's state, as the OCI runtime specification has it.
func readState(stdin io.Reader) (*specs.State, error) {
	content, err := io.ReadAll(io.LimitReader(stdin, maxStateBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read the container's state from standard input: %w", err)
	}
	if len(content) > maxStateBytes {
		return nil, fmt.Errorf("read the container's state from standard input: it is larger than %d MiB",
			maxStateBytes>>20)
	}
	state := &specs.State{}
	if err := json.Unmarshal(content, state); err != nil {
		return nil, fmt.Errorf("read the container's state from standard input: %w", err)
	}
	if err := checkID(state.ID); err != nil {
		return nil, fmt.Errorf("read the container's state from standard input: %w", err)
	}
	return state, nil
}

// checkID refuses what no runtime uses as a container's ID. It ends up in the ledger, in logs and on terminals.
func checkID(id string) error {
	switch {
	case id == "":
		return errors.New("it has no container ID")
	case len(id) > maxIDBytes:
		return fmt.Errorf("its container ID is longer than %d bytes", maxIDBytes)
	case strings.ContainsFunc(id, func(r rune) bool { return !unicode.IsPrint(r) || r == '/' }):
		return fmt.Errorf("%q is no container ID", id)
	}
	return nil
}
