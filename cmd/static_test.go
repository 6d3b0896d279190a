// Package cmd holds the programs. Here is what must be true of them as they are built.
package cmd

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// static are the programs that start with every container.
var static = []string{"tranche-runtime", "tranche-hook"}

// Nothing but the kernel takes part when these programs start: no loader, and no library that somebody could have put
// in its way.
func TestStatic(t *testing.T) {
	build := os.Getenv("TRANCHE_BUILD")
	if build == "" {
		build = "../build"
	}
	for _, name := range static {
		t.Run(name, func(t *testing.T) {
			file, err := elf.Open(filepath.Join(build, "bin", name))
			must.NoError(t, err, must.Sprint("run `make build` first"))
			defer file.Close()
			for _, program := range file.Progs {
				must.NotEq(t, elf.PT_INTERP, program.Type)
			}
			needed, err := file.ImportedLibraries()
			must.NoError(t, err)
			must.SliceEmpty(t, needed)
		})
	}
}

// A package with cgo among them would be left out of a static build without a word, and with it what it does.
func TestStatic_NoCgo(t *testing.T) {
	for _, name := range static {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{if .CgoFiles}}{{.ImportPath}}{{end}}{{end}}",
				"./"+name)
			cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
			output, err := cmd.Output()
			must.NoError(t, err)
			must.SliceEmpty(t, strings.Fields(string(output)))
		})
	}
}

// NVML is what these programs leave to others: it can only be loaded by the dynamic linker.
func TestStatic_NoNVML(t *testing.T) {
	for _, name := range static {
		output, err := exec.Command("go", "list", "-deps", "./"+name).Output()
		must.NoError(t, err)
		for _, path := range strings.Fields(string(output)) {
			must.False(t, slices.ContainsFunc([]string{"go-nvml", "nvidia-container-toolkit", "device/nvml"},
				func(part string) bool { return strings.Contains(path, part) }), must.Sprint(name, " imports ", path))
		}
	}
}
