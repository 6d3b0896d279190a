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

// Bounds of the state that a runtime passes to a hook. A container's annotations are part of it.
const (
	maxStateBytes = 4 << 20
	maxIDBytes    = 1024
)

// readState reads a container's state, as defined by the OCI runtime specification.
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

// checkID returns an error for a container ID that no runtime uses. The ID is written to the ledger, to logs and on terminals.
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
