package drivercopies

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/runtime/rootfs"
	"github.com/tranche-gpu/tranche/runtime/shadow"
	"github.com/tranche-gpu/tranche/runtime/shadowtest"
)

// madeCache is a cache that the machine's own ldconfig has written.
func madeCache(t *testing.T, format string) []byte {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"etc", "opt/forward"} {
		must.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	for file, content := range map[string][]byte{
		"etc/ld.so.conf":               []byte("/opt/forward\n"),
		"opt/forward/libcuda.so.575":   shadowtest.Library(t, "libcuda.so.1"),
		"opt/forward/libnvidia-ml.so":  shadowtest.Library(t, "libnvidia-ml.so.1"),
		"opt/forward/libsomething.so.": shadowtest.Library(t, "libsomething.so.1"),
	} {
		must.NoError(t, os.WriteFile(filepath.Join(root, file), content, 0o755))
	}
	output, err := exec.Command("ldconfig", "-r", root, "-c", format).CombinedOutput()
	must.NoError(t, err, must.Sprint(string(output)))
	content, err := os.ReadFile(filepath.Join(root, "etc/ld.so.cache"))
	must.NoError(t, err)
	return content
}

// wanted is a finder's without anything preloaded.
func wanted(name string) bool { return shadow.SONAME(name) != "" }

var madeCacheLibraries = []string{
	"libnvidia-ml.so.1 => /opt/forward/libnvidia-ml.so.1", "libcuda.so.1 => /opt/forward/libcuda.so.1",
}

// described is what ldconfig -p prints of libraries.
func described(libraries []cacheEntry) (lines []string) {
	for _, library := range libraries {
		lines = append(lines, library.name+" => "+library.path)
	}
	return lines
}

func TestLoaderCache(t *testing.T) {
	for _, format := range []string{"new", "compat", "old"} { // compat is what glibc wrote up to 2.31
		t.Run(format, func(t *testing.T) {
			content := madeCache(t, format)
			libraries, err := loaderCache(content, wanted)
			must.NoError(t, err)
			must.SliceContainsAll(t, madeCacheLibraries, described(libraries))
			all, err := loaderCache(content, func(string) bool { return true })
			must.NoError(t, err)
			must.SliceContains(t, described(all), "libsomething.so.1 => /opt/forward/libsomething.so.1")
			for _, end := range []int{0, 1, 11, 16, 28} {
				none, err := loaderCache(content[:min(end, len(content))], wanted)
				must.NoError(t, err)
				must.SliceEmpty(t, described(none))
			}
		})
	}
}

func TestLoaderCache_Broken(t *testing.T) {
	content := madeCache(t, "new")
	many := bytes.Clone(content)
	binary.NativeEndian.PutUint32(many[cacheCount:], 1<<31)
	libraries, err := loaderCache(many, wanted)
	must.NoError(t, err)
	must.SliceContainsAll(t, madeCacheLibraries, described(libraries))
	far := bytes.Clone(content)
	for i := range 3 {
		binary.NativeEndian.PutUint32(far[cacheHeaderBytes+i*cacheEntryBytes+cachePathInEntry:], 1<<32-1)
	}
	libraries, err = loaderCache(far, wanted)
	must.NoError(t, err)
	must.SliceEmpty(t, described(libraries))
	endless := append(bytes.Clone(content), bytes.Repeat([]byte("/libcuda.so.1"), 10_000)...)
	for i := range 3 {
		binary.NativeEndian.PutUint32(endless[cacheHeaderBytes+i*cacheEntryBytes+cachePathInEntry:], uint32(len(content)))
	}
	libraries, err = loaderCache(endless, wanted)
	must.NoError(t, err)
	must.SliceEmpty(t, described(libraries))
}

func TestLoaderCache_Refused(t *testing.T) {
	for _, beginning := range []string{"glibc-ld.so.cache1.2", "ld.so-1.8.0"} {
		_, err := loaderCache([]byte(beginning+strings.Repeat("\x00", 100)), wanted)
		must.ErrorIs(t, err, errUnknownCache)
	}
	// Each entry has another part of one long string for its path.
	const count = maxCacheLibraries + 1
	content := append([]byte(cacheMagic), make([]byte, cacheHeaderBytes-len(cacheMagic)+count*cacheEntryBytes)...)
	binary.NativeEndian.PutUint32(content[cacheCount:], count)
	for i := range count {
		binary.NativeEndian.PutUint32(content[cacheHeaderBytes+i*cacheEntryBytes+cachePathInEntry:], uint32(len(content)+i))
	}
	_, err := loaderCache(append(content, strings.Repeat("/", count)+"libcuda.so.1\x00"...), wanted)
	must.ErrorIs(t, err, rootfs.ErrTooMuch)
}

func FuzzLoaderCache(f *testing.F) {
	f.Add([]byte(cacheMagic))
	f.Add([]byte(cacheMagicOld + "\x00\x01\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, content []byte) {
		libraries, _ := loaderCache(content, wanted)
		for _, library := range libraries {
			for _, text := range []string{library.name, library.path} {
				if len(text) >= maxPathBytes || strings.Contains(text, "\x00") || !bytes.Contains(content, []byte(text)) {
					t.Fatalf("the cache holds no text %q", text)
				}
			}
			if library.path == "" || !wanted(library.name) && !wanted(library.path) {
				t.Fatalf("the cache holds no library of the driver at %q", library.path)
			}
		}
	})
}

func TestParseConfig(t *testing.T) {
	dirs, patterns := parseConfig("# ours\ninclude /etc/ld.so.conf.d/*.conf  more/*\n\n/opt/a \t/opt/b:/opt/c\n" +
		"/opt/d=libc6 # /opt/e\n#/opt/f\n/opt/g#/opt/h\nrelative\nhwcap 0 nosegneg\ninclude\n")
	must.SliceContainsAll(t, []string{
		"/opt/a", "/opt/b", "/opt/c", "/opt/a \t/opt/b:/opt/c", "/opt/d", "/opt/g", "relative", "hwcap", "0", "nosegneg",
		"hwcap 0 nosegneg", "include",
	}, dirs)
	must.Eq(t, []string{"/etc/ld.so.conf.d/*.conf", "more/*"}, patterns)
}

func FuzzLoaderConfig(f *testing.F) {
	f.Add("include /etc/ld.so.conf.d/*.conf\n/opt/a=libc6 # ours\n")
	f.Fuzz(func(t *testing.T, content string) {
		dirs, patterns := parseConfig(content)
		for _, dir := range dirs {
			if dir == "" || strings.ContainsAny(dir, "\n=#") {
				t.Fatalf("%q is no directory", dir)
			}
		}
		if len(dirs)+len(patterns) > 2*len(content) {
			t.Fatalf("more is read than there is")
		}
	})
}
