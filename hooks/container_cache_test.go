package hooks

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"tranche.dev/tranche/runtime/shadow"
	"tranche.dev/tranche/runtime/shadowtest"
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

func TestLoaderCache(t *testing.T) {
	for _, format := range []string{"new", "compat"} { // compat is what glibc wrote up to 2.31
		t.Run(format, func(t *testing.T) {
			content := madeCache(t, format)
			must.Eq(t, []string{"/opt/forward/libcuda.so.1", "/opt/forward/libnvidia-ml.so.1"}, loaderCache(content))
			for _, end := range []int{0, 1, 11, 60, bytes.Index(content, []byte(cacheMagic)) + cacheHeaderBytes} {
				must.SliceEmpty(t, loaderCache(content[:end]))
			}
		})
	}
}

func TestLoaderCache_Broken(t *testing.T) {
	content := madeCache(t, "new")
	many := bytes.Clone(content)
	binary.NativeEndian.PutUint32(many[len(cacheMagic):], 1<<31)
	must.SliceEmpty(t, loaderCache(many))
	far := bytes.Clone(content)
	for i := range 3 {
		binary.NativeEndian.PutUint32(far[cacheHeaderBytes+i*cacheEntryBytes+cachePathInEntry:], 1<<32-1)
	}
	must.SliceEmpty(t, loaderCache(far))
	endless := append(bytes.Clone(content), bytes.Repeat([]byte("/libcuda.so.1"), 10_000)...)
	for i := range 3 {
		binary.NativeEndian.PutUint32(endless[cacheHeaderBytes+i*cacheEntryBytes+cachePathInEntry:], uint32(len(content)))
	}
	must.SliceEmpty(t, loaderCache(endless))
}

func FuzzLoaderCache(f *testing.F) {
	f.Add([]byte(cacheMagic))
	f.Fuzz(func(t *testing.T, content []byte) {
		for _, path := range loaderCache(content) {
			if shadow.SONAME(path) == "" || len(path) >= maxPathBytes || strings.Contains(path, "\x00") ||
				!bytes.Contains(content, []byte(path)) {
				t.Fatalf("the cache holds no library of the driver at %q", path)
			}
		}
	})
}

func TestParseConfig(t *testing.T) {
	dirs, patterns := parseConfig("# ours\ninclude /etc/ld.so.conf.d/*.conf  more/*\n\n/opt/a \t/opt/b:/opt/c\n" +
		"/opt/d=libc6 # /opt/e\n#/opt/f\n/opt/g#/opt/h\nrelative\nhwcap 0 nosegneg\ninclude\n")
	must.Eq(t, []string{"/opt/a", "/opt/b", "/opt/c", "/opt/d", "/opt/g"}, dirs)
	must.Eq(t, []string{"/etc/ld.so.conf.d/*.conf", "more/*"}, patterns)
}

func FuzzLoaderConfig(f *testing.F) {
	f.Add("include /etc/ld.so.conf.d/*.conf\n/opt/a=libc6 # ours\n")
	f.Fuzz(func(t *testing.T, content string) {
		dirs, patterns := parseConfig(content)
		for _, dir := range dirs {
			if dir[0] != '/' || strings.ContainsAny(dir, " \t\n:,=#") {
				t.Fatalf("%q is no directory", dir)
			}
		}
		if len(dirs)+len(patterns) > len(content) {
			t.Fatalf("more is read than there is")
		}
	})
}
