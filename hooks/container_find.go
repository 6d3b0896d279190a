package hooks

import (
	"cmp"
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/tranche-gpu/tranche/runtime/bundle"
	"github.com/tranche-gpu/tranche/runtime/rootfs"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// libraryDirs are the directories where libraries are, whatever an image's configuration says: those of glibc and of
// musl, on Debian and on Red Hat, where images for CUDA expect NVIDIA's tools to put the driver, and where they carry a
// libcuda of their own for older drivers. NGC's images have that one directory deeper.
var libraryDirs = []string{
	"/lib", "/lib64", "/lib32", "/usr/lib", "/usr/lib64", "/usr/lib32", "/usr/local/lib", "/usr/local/lib64",
	"/lib/" + triplet, "/usr/lib/" + triplet, "/lib/i386-linux-gnu", "/usr/lib/i386-linux-gnu",
	"/usr/local/nvidia/lib", "/usr/local/nvidia/lib64",
	"/usr/local/cuda*/compat", "/usr/local/cuda*/compat/*",
}

// triplet is Debian's name for the architecture.
var triplet = map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]

// variantDirs are the names of directories, below one with libraries, where glibc seeks libraries for particular
// processors first; up to 2.36 the older of them one in the other. Those of single features it seeks up to 2.25, where the
// environment asks for them (LD_HWCAP_MASK).
var variantDirs = append([]string{hwcapsDir, "tls", "haswell", "xeon_phi", "avx512_1", "x86_64", "i686", "i586", "atomics"},
	strings.Fields(`fpu vme de pse tsc msr pae mce cx8 apic 10 sep mtrr pge mca cmov pat pse36 pn clflush 20 dts acpi mmx
		fxsr sse sse2 ss ht tm ia64 pbe`)...)

// hwcapsDir is the one of them in which glibc knows the names of directories by the processor.
const hwcapsDir = "glibc-hwcaps"

// library is a path by which a program may find one of the driver's libraries, and as which of them it does. One that has
// no SONAME here is preloaded, and what it is only the file says.
type library struct{ path, soname string }

// finder collects the paths of the driver's libraries in a container.
type finder struct {
	root      *rootfs.Root
	seen      map[searched]bool
	preloads  map[string]bool // names of preloaded files that are searched for
	libraries []library
}

// searched is a directory, by where it really is, and whether it was looked into those below it of all names.
type searched struct {
	at       string
	allNames bool
}

// findDrivers lists the paths in the container by which its programs may find one of the driver's libraries: what is
// preloaded, what the loader's cache and configuration lead to, its default directories, what the container's environment
// adds, where CUDA images have theirs, and what is mounted. A path that leads nobody knows where is an error.
//
// The cache alone would not do, since one that is made anew when the container starts holds what the configuration says
// by then; nor would the configuration alone, since a cache may hold more than that says.
func findDrivers(root *rootfs.Root, program bundle.Program) ([]library, error) {
	preloads, err := preloaded(root, program)
	if err != nil {
		return nil, err
	}
	f := &finder{root: root, seen: map[searched]bool{}, preloads: preloads.names}
	if err := f.addPreloaded(preloads.patterns); err != nil {
		return nil, err
	}
	cache, err := readLoaderCache(root, f.wants)
	if err != nil {
		return nil, err
	}
	for _, entry := range cache {
		f.add(from(program.Cwd, entry.path), entry.name)
	}
	mounted, err := f.mounted()
	if err != nil {
		return nil, err
	}
	for _, at := range mounted {
		f.add(at, at)
	}
	patterns, err := searchedDirs(root, program)
	if err != nil {
		return nil, err
	}
	for _, pattern := range patterns {
		if err := f.addPattern(pattern); err != nil {
			return nil, err
		}
	}
	return f.sorted(), nil
}

// searchedDirs lists patterns for the directories where the loader searches, or may once ldconfig has run.
func searchedDirs(root *rootfs.Root, program bundle.Program) ([]string, error) {
	configured, err := loaderConfig(root, program.Cwd)
	if err != nil {
		return nil, err
	}
	patterns := slices.Clone(libraryDirs)
	for _, dir := range configured {
		patterns = append(patterns, literal(dir))
	}
	wanted, err := searchPath(program)
	return append(patterns, wanted...), err
}

// sorted is what was found, libcuda first: a file that is found both as libcuda and as NVML gets the shadow of libcuda,
// which holds it to the limit.
func (f *finder) sorted() []library {
	slices.SortFunc(f.libraries, func(a, b library) int {
		return cmp.Or(cmp.Compare(sonameOrder[a.soname], sonameOrder[b.soname]), cmp.Compare(a.path, b.path))
	})
	return slices.Compact(f.libraries)
}

var sonameOrder = map[string]int{shadow.CUDA: 0, "": 1, shadow.NVML: 2}

// wants reports whether a name is one of the driver's libraries, or one that is preloaded.
func (f *finder) wants(name string) bool {
	return shadow.SONAME(name) != "" || f.preloads[path.Base(name)]
}

// add adds a file if its own name, or that by which programs get it, is wanted.
func (f *finder) add(file, name string) {
	sonames := []string{shadow.SONAME(name), shadow.SONAME(file)}
	switch {
	case slices.Contains(sonames, shadow.CUDA):
		f.libraries = append(f.libraries, library{file, shadow.CUDA})
	case slices.Contains(sonames, shadow.NVML):
		f.libraries = append(f.libraries, library{file, shadow.NVML})
	case f.wants(name) || f.wants(file):
		f.libraries = append(f.libraries, library{file, ""})
	}
}

func (f *finder) addPreloaded(patterns []string) error {
	for _, pattern := range patterns {
		files, err := f.root.Glob(pattern)
		if err != nil {
			return err
		}
		for _, file := range files {
			f.libraries = append(f.libraries, library{file, shadow.SONAME(file)})
		}
	}
	return nil
}

func (f *finder) addPattern(pattern string) error {
	dirs, err := f.root.Glob(pattern)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := f.addDir(dir, false); err != nil {
			return err
		}
	}
	return nil
}

// addDir adds the driver's libraries in a directory, and in those below it that the loader knows of itself: by variantDirs,
// or all of them.
func (f *finder) addDir(dir string, allNames bool) error {
	at, err := f.root.Where(dir)
	if err == nil && f.seen[searched{at, allNames}] {
		return nil
	}
	var names []string
	if err == nil {
		f.seen[searched{at, allNames}] = true
		names, err = f.root.Names(at)
	}
	if rootfs.Unreachable(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		below := path.Join(at, name)
		f.add(below, below)
		if !allNames && !slices.Contains(variantDirs, name) {
			continue
		}
		if err := f.addDir(below, name == hwcapsDir); err != nil {
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
