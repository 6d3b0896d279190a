package drivercopies

import (
	"cmp"
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/tranche-gpu/tranche/runtime/bundle"
	"github.com/tranche-gpu/tranche/runtime/rootfs"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// libraryDirs are patterns for the directories that have libraries whatever an image's configuration says: the default
// directories of glibc and musl, on Debian and on Red Hat; the directories in which CUDA images expect NVIDIA's tools to
// put the driver; and those in which they have a libcuda of their own for older drivers, in NGC's images one level deeper.
var libraryDirs = []string{
	"/lib", "/lib64", "/lib32", "/usr/lib", "/usr/lib64", "/usr/lib32", "/usr/local/lib", "/usr/local/lib64",
	"/lib/" + triplet, "/usr/lib/" + triplet, "/lib/i386-linux-gnu", "/usr/lib/i386-linux-gnu",
	"/usr/local/nvidia/lib", "/usr/local/nvidia/lib64",
	"/usr/local/cuda*/compat", "/usr/local/cuda*/compat/*",
}

// triplet is Debian's name for the architecture.
var triplet = map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]

// variantDirs are the names of subdirectories in which glibc looks first, for libraries that are built for particular
// processors. Up to 2.36 it nests the older of them; up to 2.25 it uses those of single processor features, if the
// environment selects them (LD_HWCAP_MASK).
var variantDirs = append([]string{hwcapsDir, "tls", "haswell", "xeon_phi", "avx512_1", "x86_64", "i686", "i586", "atomics"},
	strings.Fields(`fpu vme de pse tsc msr pae mce cx8 apic 10 sep mtrr pge mca cmov pat pse36 pn clflush 20 dts acpi mmx
		fxsr sse sse2 ss ht tm ia64 pbe`)...)

// hwcapsDir is the variant directory whose own subdirectories are named by the processor.
const hwcapsDir = "glibc-hwcaps"

// library is a path at which a program may find one of the driver's libraries, and the SONAME of that library. It has no
// SONAME if the file is preloaded: then the file itself has to be read.
type library struct{ path, soname string }

// finder collects the paths at which a container has the driver's libraries.
type finder struct {
	root      *rootfs.Root
	seen      map[searched]bool
	preloads  map[string]bool // names of preloaded files that the loader searches for
	libraries []library
}

// searched is a directory, by its path without links, and whether all of its subdirectories were searched.
type searched struct {
	at       string
	allNames bool
}

// find lists the paths at which programs in the container may find one of the driver's libraries: preloaded files, entries
// of the loader's cache, mounted files, and the libraries in the directories of the loader's configuration, of its defaults,
// of the container's environment and of CUDA images. A path that cannot be resolved before the program runs is an error.
//
// The cache alone is not enough, since the container may run ldconfig, which writes a cache from the configuration; nor is
// the configuration alone, since a cache may have entries that the configuration does not explain.
func find(root *rootfs.Root, program bundle.Program) ([]library, error) {
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

// searchedDirs lists patterns for the directories that the loader searches, or may search once ldconfig has run.
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

// sorted returns the libraries without duplicates, libcuda first: a file that is found both as libcuda and as NVML gets the
// shadow of libcuda, which enforces the limit.
func (f *finder) sorted() []library {
	slices.SortFunc(f.libraries, func(a, b library) int {
		return cmp.Or(cmp.Compare(sonameOrder[a.soname], sonameOrder[b.soname]), cmp.Compare(a.path, b.path))
	})
	return slices.Compact(f.libraries)
}

var sonameOrder = map[string]int{shadow.CUDA: 0, "": 1, shadow.NVML: 2}

// wants reports whether a name is that of one of the driver's libraries or of a preloaded file.
func (f *finder) wants(name string) bool {
	return shadow.SONAME(name) != "" || f.preloads[path.Base(name)]
}

// add adds a file if its own name, or the name by which programs load it, is wanted.
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

// addDir adds the driver's libraries in a directory and in the subdirectories that the loader searches by itself: those in
// variantDirs, or with allNames every one.
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
		wanted, isSearched := f.wants(name), allNames || slices.Contains(variantDirs, name)
		if !wanted && !isSearched {
			continue // nearly all of the thousands of names in an image's library directories
		}
		below := path.Join(at, name)
		f.add(below, below)
		if !isSearched {
			continue
		}
		if err := f.addDir(below, name == hwcapsDir); err != nil {
			return err
		}
	}
	return nil
}

// mounted lists the mount points in the container. Hooks that ran before this one, such as NVIDIA's, mount single files.
func (f *finder) mounted() ([]string, error) {
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, mount := range mounts {
		if inside, ok := strings.CutPrefix(mount.Mountpoint, strings.TrimSuffix(f.root.Path(), "/")+"/"); ok {
			names = append(names, "/"+inside)
		}
	}
	return names, nil
}
