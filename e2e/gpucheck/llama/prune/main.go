// Command prune leaves in a CUDA library the PTX for one architecture and zeroes all other code, so that the library packs to
// a fraction: every GPU of that architecture and newer runs it still, compiled by the driver.
//
//	prune FILE ARCHITECTURE    e.g. prune libggml-cuda.so 80
package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "prune:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: prune FILE ARCHITECTURE")
	}
	architecture, err := strconv.ParseUint(args[1], 10, 32)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	if err := pruneAll(content, uint32(architecture)); err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	return os.WriteFile(args[0], content, 0o755)
}

// A fat binary is a header of 16 bytes, whose last 8 are the length of what follows, and entries. An entry is a header with its
// kind (16 bits), its own length (32 bits at 4), that of the code behind it (64 bits at 8) and the architecture (32 bits at 28).
const (
	headerBytes = 16
	kindPTX     = 1
)

var magic = []byte{0x50, 0xed, 0x55, 0xba, 1, 0, headerBytes, 0}

var le = binary.LittleEndian

// pruneAll prunes every fat binary. One without PTX for the architecture would have no code left, which is an error.
func pruneAll(content []byte, architecture uint32) error {
	for at := bytes.Index(content, magic); at >= 0; {
		rest := content[at:]
		if len(rest) < headerBytes || le.Uint64(rest[8:]) > uint64(len(rest)-headerBytes) {
			return fmt.Errorf("the fat binary at %#x is cut off", at)
		}
		end := headerBytes + int(le.Uint64(rest[8:]))
		kept, err := prune(rest[headerBytes:end], architecture)
		if err != nil {
			return fmt.Errorf("the fat binary at %#x: %w", at, err)
		}
		le.PutUint64(rest[8:], uint64(kept))
		next := bytes.Index(rest[end:], magic)
		if next < 0 {
			return nil
		}
		at += end + next
	}
	return errors.New("there is no fat binary in it")
}

// prune moves the entries that stay to the front, zeroes what is behind them, and returns their length.
func prune(entries []byte, architecture uint32) (kept int, err error) {
	for at := 0; at < len(entries); {
		rest := entries[at:]
		if len(rest) < 32 {
			return 0, errors.New("its last entry is cut off")
		}
		length := uint64(le.Uint32(rest[4:])) + le.Uint64(rest[8:])
		if length < 32 || length > uint64(len(rest)) {
			return 0, fmt.Errorf("an entry of %d bytes does not fit", length)
		}
		if le.Uint16(rest) == kindPTX && le.Uint32(rest[28:]) == architecture {
			kept += copy(entries[kept:], rest[:length])
		}
		at += int(length)
	}
	if kept == 0 {
		return 0, fmt.Errorf("it has no PTX for architecture %d", architecture)
	}
	clear(entries[kept:])
	return kept, nil
}
