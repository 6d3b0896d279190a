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

// File is a file that an engine has written for the OCI runtime.
type File struct {
	// What the file is to the engine, and which Kind of JSON it holds, for errors.
	What, Kind string
	Path       string
	// Info and Content are what Read found.
	Info    fs.FileInfo
	Content []byte
}

// Spec is the file of a container's spec.
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

// open opens the file if it is a regular one. A pipe is left alone: whoever writes to it would take us for the next
// runtime. The caller may be anybody who can start a container, and put one there after we have looked: don't wait for
// its writer then.
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

// Parse reads what the file says into a value: a *specs.Spec, or one that has only some of its members. A whole one is
// costly: encoding/json learns a hundred types, those of all platforms, before it reads a byte.
func (f *File) Parse(into any) error {
	if err := json.Unmarshal(f.Content, into); err != nil {
		return fmt.Errorf("read %s: %s is no %s: %w", f.What, f.Path, f.Kind, err)
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
