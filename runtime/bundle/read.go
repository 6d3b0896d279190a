// Package bundle reads a container's bundle, the directory with the container's spec. It imports little, so that the hooks
// start quickly.
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

// MaxSpecBytes bounds the size of a container's spec. The largest in practice have some hundred KiB.
const MaxSpecBytes = 16 << 20

// File is a file that an engine has written for the OCI runtime.
type File struct {
	// What and Kind describe the file and its JSON in errors.
	What, Kind string
	Path       string
	// Info and Content are set by Read.
	Info    fs.FileInfo
	Content []byte
}

// Spec returns the file of a container's spec.
func Spec(path string) File { return File{What: "the container's spec", Kind: "OCI spec", Path: path} }

// Read reads the file.
func (f *File) Read() error {
	file, err := f.open()
	if err != nil {
		return fmt.Errorf("read %s: %w", f.What, err)
	}
	defer file.Close()
	f.Content, err = io.ReadAll(io.LimitReader(file, MaxSpecBytes+1))
	if err != nil {
		return fmt.Errorf("read %s: %w", f.What, err)
	}
	if len(f.Content) > MaxSpecBytes {
		return fmt.Errorf("read %s: %s is larger than %d MiB", f.What, f.Path, MaxSpecBytes>>20)
	}
	return nil
}

// open opens the file if it is a regular one. A pipe is for the next runtime to read. An untrusted caller may replace the file
// by a pipe after the check, so opening does not wait for a writer.
func (f *File) open() (*os.File, error) {
	info, err := os.Stat(f.Path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file (%s)", f.Path, info.Mode().Type())
	}
	file, err := os.OpenFile(f.Path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if f.Info, err = file.Stat(); err == nil && !f.Info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file (%s)", f.Path, f.Info.Mode().Type())
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// Parse parses the file into a value: a *specs.Spec, or a type with some of its members. A whole spec is slow: encoding/json
// first reflects on a hundred types, those of all platforms.
func (f *File) Parse(into any) error {
	if err := json.Unmarshal(f.Content, into); err != nil {
		return fmt.Errorf("read %s: %s is no %s: %w", f.What, f.Path, f.Kind, err)
	}
	return nil
}

// Program is the part of a spec about the container's process and its root file system.
type Program struct {
	// RootDir is the root file system on the host, an absolute path.
	RootDir string
	// Env and Cwd are the process's. Both are empty for a container without a process.
	Env []string
	Cwd string
}

// ReadProgram reads a Program from the spec in a bundle, which is an absolute path.
func ReadProgram(bundle string) (Program, error) {
	if !filepath.IsAbs(bundle) {
		return Program{}, fmt.Errorf("the container's state names no bundle (%q)", bundle)
	}
	file := Spec(filepath.Join(bundle, "config.json"))
	if err := file.Read(); err != nil {
		return Program{}, err
	}
	var spec struct {
		Root    *specs.Root `json:"root"`
		Process *struct {
			Env []string `json:"env"`
			Cwd string   `json:"cwd"`
		} `json:"process"`
	}
	if err := file.Parse(&spec); err != nil {
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
