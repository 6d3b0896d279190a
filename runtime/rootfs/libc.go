package rootfs

import (
	"fmt"
	"runtime"
)

// loaders are the paths of the loaders in programs, as defined by the architecture's ABI.
type loaders struct{ glibc, musl string }

var loadersOf = map[string]loaders{
	"amd64": {"/lib64/ld-linux-x86-64.so.2", "/lib/ld-musl-x86_64.so.1"},
	"arm64": {"/lib/ld-linux-aarch64.so.1", "/lib/ld-musl-aarch64.so.1"},
}

// Lacks describes in one line what programs of this image lack to find a GPU, or returns "" if nothing is known. Such an image
// starts all the same, since it may not use the GPU itself.
func Lacks(root *Root) (string, error) {
	known, ok := loadersOf[runtime.GOARCH]
	if !ok {
		return "", nil
	}
	glibc, err := root.has(known.glibc)
	if glibc || err != nil {
		return "", err
	}
	musl, err := root.has(known.musl)
	if err != nil {
		return "", err
	}
	libc := "no C library that programs could load"
	if musl {
		libc = "musl as its C library"
	}
	return fmt.Sprintf("the image has %s and no glibc (%s), which NVIDIA's driver needs (2.17 or newer): "+
		"its programs find no GPU; use an image with glibc", libc, known.glibc), nil
}

// LacksIn is Lacks for the root file system at a path on the host.
func LacksIn(dir string) (string, error) {
	root, err := Open(dir, "/")
	if err != nil {
		return "", err
	}
	defer root.Close()
	return Lacks(root)
}

func (r *Root) has(name string) (bool, error) {
	file, err := r.Handle(name)
	if Unreachable(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, file.Close()
}
