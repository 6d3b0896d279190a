package images

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// libcParts are libraries that a program may load later although it does not name them.
var libcParts = []string{"libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1"}

// Program is the busybox image with one program of this machine in /bin, and the shared libraries that it needs, each
// where it lies here.
func Program(binary string, more ...File) (v1.Image, error) {
	base, err := Busybox()
	if err != nil {
		return nil, err
	}
	libraries, err := sharedLibraries(binary)
	if err != nil {
		return nil, err
	}
	files := []File{{Path: "/bin/" + filepath.Base(binary), From: binary}}
	for _, library := range libraries {
		files = append(files, File{Path: library, From: library})
	}
	return WithFiles(base, append(files, more...)...)
}

// sharedLibraries asks the loader which files the program needs, the loader itself included. A static program needs
// none.
func sharedLibraries(binary string) ([]string, error) {
	out, err := exec.Command("ldd", binary).CombinedOutput()
	if err != nil {
		if strings.Contains(string(out), "not a dynamic executable") {
			return nil, nil
		}
		return nil, fmt.Errorf("ask for the shared libraries of %s: %w: %s", binary, err, out)
	}
	found := map[string]bool{}
	var files []string
	add := func(file string) {
		if !found[file] {
			found[file] = true
			files = append(files, file)
		}
	}
	for line := range strings.Lines(string(out)) {
		// "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)" or "/lib64/ld-linux-x86-64.so.2 (0x…)"
		for _, field := range strings.Fields(line) {
			if !filepath.IsAbs(field) {
				continue
			}
			add(field)
			for _, part := range libcParts {
				sibling := filepath.Join(filepath.Dir(field), part)
				if _, err := os.Stat(sibling); err == nil {
					add(sibling)
				}
			}
		}
	}
	return files, nil
}
