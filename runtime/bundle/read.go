// Package bundle reads a container's bundle: the directory in which an OCI runtime finds the container's spec. It imports
// little, since the hooks are to start quickly.
package bundle

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// MaxSpecBytes bounds the size of a container's spec. The largest that are seen in practice are some hundred KiB.
const MaxSpecBytes = 16 << 20

// ReadFile reads the file of a container's spec.
func ReadFile(path string) ([]byte, fs.FileInfo, error) {
	// The caller may be anybody who can start a container: don't wait for a writer if they left a FIFO here.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("read the container's spec: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, nil, fmt.Errorf("read the container's spec: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("read the container's spec: %s is no regular file (%s)", path, info.Mode().Type())
	}
	content, err := io.ReadAll(io.LimitReader(file, MaxSpecBytes+1))
	if err != nil {
		return nil, nil, fmt.Errorf("read the container's spec: %w", err)
	}
	if len(content) > MaxSpecBytes {
		return nil, nil, fmt.Errorf("read the container's spec: %s is larger than %d MiB", path, MaxSpecBytes>>20)
	}
	return content, info, nil
}

// Parse reads what a spec says into a value: a *specs.Spec, or one that has only some of its members. A whole one is
// costly: encoding/json learns a hundred types, those of all platforms, before it reads a byte.
func Parse(path string, content []byte, into any) error {
	if err := json.Unmarshal(content, into); err != nil {
		return fmt.Errorf("read the container's spec: %s is no OCI spec: %w", path, err)
	}
	return nil
}

// Program is the part of a spec that says what runs in the container, and where its files are.
type Program struct {
	// RootDir is the root file system on the host, an absolute path.
	RootDir string
	// Env and Cwd are the process's. Both are empty for a container without a process.
	Env []string
	Cwd string
}

// ReadProgram reads it from the spec in a bundle, which is an absolute path.
func ReadProgram(bundle string) (Program, error) {
	if !filepath.IsAbs(bundle) {
		return Program{}, fmt.Errorf("the container's state names no bundle (%q)", bundle)
	}
	file := filepath.Join(bundle, "config.json")
	content, _, err := ReadFile(file)
	if err != nil {
		return Program{}, err
	}
	var spec struct {
		Root    *specs.Root `json:"root"`
		Process *struct {
			Env []string `json:"env"`
			Cwd string   `json:"cwd"`
		} `json:"process"`
	}
	if err := Parse(file, content, &spec); err != nil {
		return Program{}, err
	}
	if spec.Root == nil || spec.Root.Path == "" {
		return Program{}, fmt.Errorf("the container's spec in %s names no root file system", bundle)
	}
	program := Program{RootDir: spec.Root.Path}
	if !filepath.IsAbs(program.RootDir) {
		program.RootDir = filepath.Join(bundle, program.RootDir)
	}
	if spec.Process != nil {
		program.Env, program.Cwd = spec.Process.Env, spec.Process.Cwd
	}
	return program, nil
}
