package hooks

import (
	"path"
	"runtime"
	"slices"
	"strings"

	"tranche.dev/tranche/runtime/bundle"
	"tranche.dev/tranche/runtime/rootfs"
	"tranche.dev/tranche/runtime/shadow"
)

// libraryDirs are the directories where libraries are, whatever an image's configuration says: those of glibc and of
// musl, on Debian and on Red Hat, where images for CUDA expect NVIDIA's tools to put the driver, and where they carry a
// libcuda of their own for older drivers. NGC's images have that one directory deeper.
var libraryDirs = []string{
	"/lib", "/lib64", "/lib32", "/usr/lib", "/usr/lib64", "/usr/lib32", "/usr/local/lib", "/usr/local/lib64",
	"/lib/" + triplet, "/usr/lib/" + triplet, "/usr/lib/i386-linux-gnu",
	"/usr/local/nvidia/lib", "/usr/local/nvidia/lib64",
	"/usr/local/cuda*/compat", "/usr/local/cuda*/compat/*",
}

// triplet is Debian's name for the architecture.
var triplet = map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]

// variantDirs are the names of directories, below one with libraries, where glibc seeks libraries for particular
// processors first; up to 2.36 the older of them one in the other.
var variantDirs = []string{"glibc-hwcaps", "tls", "haswell", "xeon_phi", "avx512_1", "x86_64", "atomics"}

// variantDepth is how deep those can be nested.
const variantDepth = 4

// finder collects the names of the driver's libraries in a container.
type finder struct {
	root  *rootfs.Root
	seen  map[string]bool // directories, by where they really are
	names []string
}

// findDrivers lists the paths in the container by which its programs may find one of the driver's libraries: what the
// loader's cache and configuration lead to, its default directories, what the container's environment adds, where CUDA
// images have theirs, and what is mounted.
//
// The cache alone would not do, since one that is made anew when the container starts holds what the configuration says
// by then; nor would the configuration alone, since a cache may hold more than that says.
func findDrivers(root *rootfs.Root, program bundle.Program) ([]string, error) {
	f := &finder{root: root, seen: map[string]bool{}}
	dirs := slices.Clone(libraryDirs)
	configured, err := loaderConfig(root)
	if err != nil {
		return nil, err
	}
	for _, dir := range configured {
		dirs = append(dirs, literal(dir))
	}
	for _, dir := range searchPath(program) {
		dirs = append(dirs, literal(dir))
	}
	f.add(preloaded(program)...)
	cached, err := readLoaderCache(root)
	if err != nil {
		return nil, err
	}
	f.add(cached...)
	mounted, err := f.mounted()
	if err != nil {
		return nil, err
	}
	f.add(mounted...)
	for _, pattern := range dirs {
		if err := f.addPattern(pattern); err != nil {
			return nil, err
		}
	}
	slices.Sort(f.names)
	return slices.Compact(f.names), nil
}

// add adds those names that are a driver's library.
func (f *finder) add(names ...string) {
	for _, name := range names {
		if shadow.SONAME(name) != "" {
			f.names = append(f.names, name)
		}
	}
}

func (f *finder) addPattern(pattern string) error {
	dirs, err := f.root.Glob(pattern)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := f.addDir(dir, variantDepth); err != nil {
			return err
		}
	}
	return nil
}

// addDir adds the driver's libraries in a directory, and in those below it that the loader knows of itself.
func (f *finder) addDir(dir string, depth int) error {
	at, err := f.root.Where(dir)
	if err == nil && f.seen[at] {
		return nil
	}
	var names []string
	if err == nil {
		f.seen[at] = true
		names, err = f.root.Names(at)
	}
	if rootfs.Unreachable(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		f.add(path.Join(at, name))
		if depth == 0 || !slices.Contains(variantDirs, name) && path.Base(at) != "glibc-hwcaps" {
			continue
		}
		if err := f.addDir(path.Join(at, name), depth-1); err != nil {
			return err
		}
	}
	return nil
}

// mounted lists the mounts in the container. Hooks that ran before us, such as NVIDIA's, mount files one by one.
func (f *finder) mounted() ([]string, error) {
	mounts, err := readMounts()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, mount := range mounts {
		if inside, ok := strings.CutPrefix(mount.at, strings.TrimSuffix(f.root.Path(), "/")+"/"); ok {
			names = append(names, "/"+inside)
		}
	}
	return names, nil
}

// literal is the pattern that matches a path only.
func literal(name string) string { return globMeta.Replace(name) }

var globMeta = strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `\`, `\\`)
