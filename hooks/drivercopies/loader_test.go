package drivercopies

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// The tests here have the real loader of glibc judge which file is loaded, in an image with glibc, a program that asks
// for libcuda.so.1, and a copy of the driver. The copy and the shadow are small libraries that say what they are.

// loaderFiles are the compiled programs and libraries.
var loaderFiles = sync.OnceValues(func() (map[string]string, error) {
	dir, err := os.MkdirTemp("", "tranche-loader-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	const script = `set -e
cd "$1"
cat >asker.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int main(void)
{
	const char *(*whoami)(void) = (const char *(*)(void))dlsym(RTLD_DEFAULT, "whoami");
	void *library = dlopen("libcuda.so.1", RTLD_LAZY);
	if (!whoami && library)
		whoami = (const char *(*)(void))dlsym(library, "whoami");
	puts(whoami ? whoami() : "none");
	return 0;
}
C
library() { # FILE SAYS SONAME [DEPENDENCY]
	echo "const char *$2(void) { return \"$3\"; }" |
		gcc -shared -fPIC -x c - -x none -o "$1" -Wl,--no-as-needed -Wl,-soname,"$4" $5
}
gcc -o asker asker.c
library copy whoami copy libcuda.so.1
library tool tool tool libtool.so
for name in libcuda libnvidia-ml; do
	library libbehind-$name.so behind behind "\$ORIGIN/.tranche/driver-$name.so"
done
library libcuda.so.1 whoami shadow libcuda.so.1 ./libbehind-libcuda.so
library libnvidia-ml.so.1 nvml shadow libnvidia-ml.so.1 ./libbehind-libnvidia-ml.so
`
	if output, err := exec.Command("sh", "-c", script, "sh", dir).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, output)
	}
	files := map[string]string{}
	for _, name := range []string{"asker", "copy", "tool", "libcuda.so.1", "libnvidia-ml.so.1"} {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		files[name] = string(content)
	}
	return files, nil
})

// compiled writes one of these files into the image.
func (i *image) compiled(file, name string) {
	i.t.Helper()
	files, err := loaderFiles()
	must.NoError(i.t, err)
	i.write(name, files[file])
}

// driver puts a copy of the driver into the image.
func (i *image) driver(name string) {
	i.t.Helper()
	i.compiled("copy", name)
}

// newLoaderImage is an image with glibc and the program that asks for the driver.
func newLoaderImage(t *testing.T) *image {
	t.Helper()
	i := newImage(t)
	i.compiled("asker", "bin/asker")
	for _, library := range []string{"/lib64/ld-linux-x86-64.so.2", "/lib/" + triplet + "/libc.so.6"} {
		content, err := os.ReadFile(library)
		must.NoError(t, err)
		i.write(library, string(content))
	}
	files, err := loaderFiles()
	must.NoError(t, err)
	for _, soname := range []string{shadow.CUDA, shadow.NVML} {
		must.NoError(t, os.WriteFile(filepath.Join(i.shadowDir, soname), []byte(files[soname]), 0o755))
	}
	must.NoError(t, os.MkdirAll(i.path("work"), 0o755))
	return i
}

// cache has the real ldconfig make the image's cache, of a format and for one directory, which no configuration names
// any more.
func (i *image) cache(format, dir string) {
	i.t.Helper()
	i.write("etc/ld.so.conf", dir+"\n")
	output, err := exec.Command("ldconfig", "-r", i.path(""), "-c", format).CombinedOutput()
	must.NoError(i.t, err, must.Sprint(string(output)))
	must.NoError(i.t, os.Remove(i.path("etc/ld.so.conf")))
}

// editCache changes the image's cache.
func (i *image) editCache(edit func([]byte) []byte) {
	i.t.Helper()
	content, err := os.ReadFile(i.path("etc/ld.so.cache"))
	must.NoError(i.t, err)
	i.write("etc/ld.so.cache", string(edit(content)))
}

// ask runs the program before and after the hook, with the image's environment and working directory, and returns which
// library the loader gave it each time.
func (i *image) ask() (before, after string, err error) {
	i.t.Helper()
	script := "cd " + cmp.Or(i.cwd, "/work") + "\n"
	for _, entry := range i.env {
		script += "export '" + entry + "'\n"
	}
	script += "exec /bin/asker"
	i.unhooked = script
	output, err := i.run(script)
	lines := strings.Fields(output)
	if err != nil {
		return "", "", err
	}
	must.Len(i.t, 2, lines, must.Sprint(output))
	return lines[0], lines[1], nil
}

// loaderCases are images whose files or environment lead the loader to a copy of the driver.
var loaderCases = []struct {
	name    string
	env     []string
	lay     func(i *image)
	refused string // what the error says where the container must not start; "" where it gets the shadow
}{
	{"the search path", []string{"LD_LIBRARY_PATH=/opt/real"}, layReal, ""},
	{"self/root in CUDA's own folder, first in the search path", []string{"LD_LIBRARY_PATH=/usr/local/cuda/compat"}, func(i *image) {
		layReal(i)
		i.link("/proc/self/root/opt/real", "usr/local/cuda/compat")
	}, ""},
	{"self/root in the search path", []string{"LD_LIBRARY_PATH=/proc/self/root/opt/real"}, layReal, ""},
	{"self/./root, many times", []string{
		"LD_LIBRARY_PATH=/proc/self/.//root/proc/self/root/../proc/thread-self/root/opt/real",
	}, layReal, ""},
	{"thread-self/root in the search path", []string{"LD_LIBRARY_PATH=/proc/thread-self/root/opt/real"}, layReal, ""},
	{"self/cwd in the search path", []string{"LD_LIBRARY_PATH=/proc/self/cwd/real"}, func(i *image) { i.driver("work/real/libcuda.so.1") }, ""},
	{"thread-self/cwd by a link", []string{"LD_LIBRARY_PATH=/links/cwd/../opt/real"}, func(i *image) {
		layReal(i)
		i.link("/proc/thread-self/cwd", "links/cwd")
	}, ""},
	{"self/root as a library", nil, func(i *image) {
		i.driver("opt/driver")
		i.link("/proc/self/root/opt/driver", "usr/lib/libcuda.so.1")
	}, ""},
	{"self/root in LD_PRELOAD", []string{"LD_PRELOAD=/proc/self/root/opt/real/libcuda.so.1"}, layReal, ""},
	{"self/root in a cache's entry", nil, func(i *image) {
		layReal(i)
		i.cache("new", "/opt/real")
		i.link("/proc/self/root/opt/moved", "opt/link")
		must.NoError(i.t, os.Rename(i.path("opt/real"), i.path("opt/moved")))
		must.NoError(i.t, os.Rename(i.path("opt/link"), i.path("opt/real")))
	}, ""},
	{"self/root as the cache", nil, func(i *image) {
		layReal(i)
		i.cache("new", "/opt/real")
		must.NoError(i.t, os.Rename(i.path("etc/ld.so.cache"), i.path("etc/cache")))
		i.link("/proc/self/root/etc/cache", "etc/ld.so.cache")
	}, ""},
	{"the root of the first process", []string{"LD_LIBRARY_PATH=/proc/1/root/opt/real"}, layReal, "/proc"},
	{"the root of a process that is not there yet", nil, func(i *image) { i.link("/proc/4000000/root/opt", "usr/local/cuda/compat") }, "/proc"},
	{"a working directory that leads through itself", []string{"LD_LIBRARY_PATH=opt/real"}, func(i *image) {
		layReal(i)
		i.cwd = "/dir"
		i.link("/proc/self/cwd", "dir")
	}, "/proc"},
	{"a thread's root", []string{"LD_LIBRARY_PATH=/proc/self/task/1/root/opt/real"}, nil, "/proc"},
	{"a descriptor", []string{"LD_LIBRARY_PATH=/proc/self/fd/3"}, nil, "/proc"},
	{"a descriptor, by its other name", []string{"LD_PRELOAD=/proc/thread-self/fd/3"}, nil, "/proc"},

	{"/etc/ld.so.preload", nil, func(i *image) {
		i.driver("opt/libcuda.so.1")
		i.write("etc/ld.so.preload", "# libraries\n/none.so:/opt/libcuda.so.1 # ours")
	}, ""},
	{"a preloaded copy of another name", []string{"LD_PRELOAD=/opt/tool.so"}, func(i *image) { i.driver("opt/tool.so") }, ""},
	{"a preloaded copy of another name that is searched for", []string{"LD_PRELOAD=tool.so", "LD_LIBRARY_PATH=/opt"}, func(i *image) {
		i.driver("opt/tool.so")
	}, ""},
	{"a preloaded copy with a tab in its name", []string{"LD_PRELOAD=/none.so /opt/to\tol.so:"}, func(i *image) { i.driver("opt/to\tol.so") }, ""},
	{"/etc/ld.so.preload with another character in a name", nil, func(i *image) {
		i.driver("opt/tool.so\r")
		i.write("etc/ld.so.preload", "/opt/tool.so\r\n")
	}, ""},
	{"/etc/ld.so.preload with a copy of another name", nil, func(i *image) {
		i.driver("usr/lib/tool.so")
		i.write("etc/ld.so.preload", "tool.so\n")
	}, ""},

	{"a cache of the new format", nil, func(i *image) { layReal(i); i.cache("new", "/opt/real") }, ""},
	{"a cache of both formats", nil, func(i *image) { layReal(i); i.cache("compat", "/opt/real") }, ""},
	{"a cache of the old format", nil, func(i *image) { layReal(i); i.cache("old", "/opt/real") }, ""},
	{"a cache that names another file", nil, func(i *image) {
		layReal(i)
		i.cache("new", "/opt/real")
		i.renameInCache("/opt/real/libcuda.so.1", "/opt/real/something.so", shadow.CUDA)
	}, ""},
	{"a cache of the old format that names another file", nil, func(i *image) {
		layReal(i)
		i.cache("old", "/opt/real")
		i.renameInCache("/opt/real/libcuda.so.1", "/opt/real/something.so", shadow.CUDA)
	}, ""},
	{"a cache that names a file in the working directory", nil, func(i *image) {
		layReal(i)
		must.NoError(i.t, os.MkdirAll(i.path("work/opt/real"), 0o755))
		i.cache("new", "/opt/real")
		i.renameInCache("/opt/real/libcuda.so.1", "opt/real/0libcuda.so.1", shadow.CUDA)
		must.NoError(i.t, os.Rename(i.path("opt/real/0libcuda.so.1"), i.path("work/opt/real/0libcuda.so.1")))
	}, ""},
	{"the new format's magic as a decoy in the old part", nil, func(i *image) {
		layReal(i)
		i.cache("compat", "/opt/real")
		i.editCache(decoy)
	}, ""},
	{"a name with the same number in the cache", nil, func(i *image) {
		layReal(i)
		i.cache("new", "/opt/real")
		i.renameInCache("/opt/real/libcuda.so.1", "/opt/real/something.so", "libcuda.so.0001")
	}, ""},

	{"$PLATFORM", []string{"LD_LIBRARY_PATH=/opt/${PLATFORM}/real:/opt/$PLATFORM"}, func(i *image) {
		for _, platform := range []string{"x86_64", "haswell", "xeon_phi"} { // as the machine has it
			i.driver("opt/" + platform + "/libcuda.so.1")
		}
	}, ""},
	{"$LIB", []string{"LD_LIBRARY_PATH=/opt/$LIB"}, func(i *image) { i.driver("opt/lib/" + triplet + "/libcuda.so.1") }, ""},
	{"$LIB before other characters", []string{"LD_LIBRARY_PATH=/opt/$LIB-real"}, func(i *image) {
		i.driver("opt/lib/" + triplet + "-real/libcuda.so.1")
	}, ""},
	{"$LIB in LD_PRELOAD", []string{"LD_PRELOAD=/opt/$LIB/libcuda.so.1"}, func(i *image) { i.driver("opt/lib/" + triplet + "/libcuda.so.1") }, ""},
	{"$ORIGIN", []string{"LD_LIBRARY_PATH=/none:$ORIGIN/../opt/real"}, layReal, "$ORIGIN"},
	{"${ORIGIN} in LD_PRELOAD", []string{"LD_PRELOAD=${ORIGIN}/../opt/real/libcuda.so.1"}, layReal, "$ORIGIN"},
	{"$ORIGIN in /etc/ld.so.preload", nil, func(i *image) {
		layReal(i)
		i.write("etc/ld.so.preload", "$ORIGIN/../opt/real/libcuda.so.1\n")
	}, `/etc/ld.so.preload: "$ORIGIN/../opt/real/libcuda.so.1": $ORIGIN`},
	{"the copy behind a shadow, preloaded", []string{"LD_PRELOAD=/.tranche/c/0000/driver-libcuda.so"}, layCompat, "/.tranche/c"},
	{"the copy behind a shadow, preloaded by name", []string{
		"LD_PRELOAD=driver-libcuda.so", "LD_LIBRARY_PATH=/.tranche/c/0000",
	}, layCompat, "/.tranche/c"},
	{"a link to the copy behind a shadow", []string{"LD_LIBRARY_PATH=/opt"}, func(i *image) {
		layCompat(i)
		i.link("../proc/self/root/.tranche/c/0000/driver-libcuda.so", "opt/libcuda.so.1")
	}, "/.tranche/c"},
	{"semicolons", []string{"LD_LIBRARY_PATH=/none;/opt/real"}, layReal, ""},
	{"nothing before a semicolon", []string{"LD_LIBRARY_PATH=;/none"}, func(i *image) { i.driver("work/libcuda.so.1") }, ""},

	{"a directory for particular processors that is a link", nil, func(i *image) {
		for _, level := range []string{"x86-64-v2", "x86-64-v3", "x86-64-v4"} {
			i.driver("opt/hw/" + level + "/libcuda.so.1")
		}
		i.link("/opt/hw", "usr/lib/glibc-hwcaps")
	}, ""},
	{"directories for processors, one in the other", []string{"LD_LIBRARY_PATH=/opt"}, func(i *image) {
		i.driver("opt/tls/x86_64/x86_64/libcuda.so.1")
		i.driver("opt/tls/haswell/x86_64/libcuda.so.1") // what glibc calls newer processors of Intel's
	}, ""},
	{"directories for processors that are links", []string{"LD_LIBRARY_PATH=/opt"}, func(i *image) {
		i.driver("usr/real/x86_64/x86_64/libcuda.so.1")
		i.driver("usr/real/haswell/x86_64/libcuda.so.1")
		i.link("/usr/real", "opt/tls")
	}, ""},
	{"more links than one path may have", []string{"LD_LIBRARY_PATH=l0"}, func(i *image) {
		// The working directory is a path of its own: thirty links lead to it, thirty more from it.
		i.cwd = "/l0"
		for n := range 30 {
			i.link(fmt.Sprintf("l%d", n+1), fmt.Sprintf("l%d", n))
			i.link(fmt.Sprintf("l%d", n+1), fmt.Sprintf("work/l%d", n))
		}
		i.link("work", "l30")
		i.driver("work/l30/libcuda.so.1")
	}, ""},
	{"the driver's library under NVML's name", []string{"LD_LIBRARY_PATH=/opt/a:/opt/b"}, func(i *image) {
		i.driver("opt/a/libnvidia-ml.so.1")
		i.link("../a/libnvidia-ml.so.1", "opt/b/libcuda.so.1")
	}, ""},
}

// layReal puts the copy of the driver where nothing leads to it by itself.
func layReal(i *image) { i.driver("opt/real/libcuda.so.1") }

func layCompat(i *image) { i.driver("usr/local/cuda/compat/libcuda.so.1") }

// renameInCache gives a file another name, of the same length, in the image and in the cache's entry, and that a key.
func (i *image) renameInCache(from, to, key string) {
	i.t.Helper()
	must.NoError(i.t, os.Rename(i.path(from), i.path(to)))
	// ldconfig has the key end where the path ends: give it a string of its own, at the end of the file.
	i.editCache(func(content []byte) []byte {
		at := strings.Index(string(content), from+"\x00")
		must.Positive(i.t, at)
		was := at + len(from) - len("libcuda.so.1")
		appended := slices.Concat(content, []byte(key+"\x00"))
		base := 0
		if strings.HasPrefix(string(content), "ld.so-1.7.0") {
			base = 16 + 12*int(binary.NativeEndian.Uint32(content[12:]))
		}
		patched := 0
		for p := 0; p+4 <= at; p += 4 {
			if int(binary.NativeEndian.Uint32(content[p:])) == was-base {
				binary.NativeEndian.PutUint32(appended[p:], uint32(len(content)-base))
				patched++
			}
		}
		must.Eq(i.t, 1, patched)
		copy(appended[at:], to)
		return appended
	})
}

// decoy puts a cache of the new format without an entry where a search for its magic finds it first: in what the old
// part has between its entries and the real one.
func decoy(content []byte) []byte {
	const header, entry = 16, 12
	count := int(binary.NativeEndian.Uint32(content[12:]))
	end := (header + entry*count + 7) &^ 7 // where the new format begins
	// Entries of the old part that the loader never reads, since there is a new one, hold the decoy.
	padding := make([]byte, (48/entry)*entry*2)
	copy(padding, cacheMagic)
	decoyed := append([]byte(nil), content[:header]...)
	decoyed = append(decoyed, padding...)
	decoyed = append(decoyed, content[header:end]...)
	decoyed = append(decoyed, content[end:]...)
	binary.NativeEndian.PutUint32(decoyed[12:], uint32(count+len(padding)/entry))
	return decoyed
}

// Where the real loader takes a copy of the driver because of the image's files or environment, it takes the shadow after
// the hook has run, or the container does not start.
func TestLoader(t *testing.T) {
	for _, tc := range loaderCases {
		t.Run(tc.name, func(t *testing.T) {
			i := newLoaderImage(t)
			i.env = tc.env
			if tc.lay != nil {
				tc.lay(i)
			}
			before, after, err := i.ask()
			if tc.refused != "" {
				must.ErrorContains(t, err, tc.refused)
				must.ErrorContains(t, err, errorPrefix)
				return
			}
			must.NoError(t, err)
			must.Eq(t, "copy", before, must.Sprint("the loader does not get at the copy, so this case shows nothing"))
			must.Eq(t, "shadow", after)
		})
	}
}

// Images that are as they should be, or only untidy, start.
func TestLoader_OrdinaryImages(t *testing.T) {
	cases := []struct {
		name string
		env  []string
		lay  func(i *image)
	}{
		{"no cache", nil, nil},
		{"dangling links", []string{"LD_LIBRARY_PATH=/usr/local/cuda/lib64"}, func(i *image) {
			i.link("/none/libcuda.so.1", "usr/lib/libcuda.so.1")
			i.link("/none", "usr/local/cuda/compat")
			i.link("/none", "usr/local/cuda/lib64")
			i.link("/none/cache", "etc/ld.so.cache")
		}},
		{"a link to itself", []string{"LD_LIBRARY_PATH=/loop"}, func(i *image) { i.link("loop", "loop") }},
		{"directories that are not there", []string{"LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64::relative:"}, nil},
		{"a file in the search path", []string{"LD_LIBRARY_PATH=/opt/file:/opt/file/deeper"}, func(i *image) { i.write("opt/file", "") }},
		{"a cache that is no cache", nil, func(i *image) { i.write("etc/ld.so.cache", "none") }},
		{"an empty cache", nil, func(i *image) { i.write("etc/ld.so.cache", "") }},
		{"a library that is preloaded", []string{"LD_PRELOAD=/usr/lib/libtool.so:libtool.so:/none.so"}, func(i *image) {
			i.compiled("tool", "usr/lib/libtool.so")
		}},
		{"a text that is preloaded", []string{"LD_PRELOAD=/usr/lib/text"}, func(i *image) { i.write("usr/lib/text", "text") }},
		{"a dollar that means nothing", []string{"LD_LIBRARY_PATH=/opt/$HOME/lib:/opt/$LIBRARY:/opt/$ORIGINAL"}, nil},
		{"files of the kernel's", []string{"LD_LIBRARY_PATH=/proc/sys:/proc"}, func(i *image) {
			i.link("/proc/sys/kernel/core_pattern", "usr/lib/libcuda.so.2")
			i.write("etc/x", "")
			i.link("/dev/null", "etc/ld.so.conf")
		}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			i := newLoaderImage(t)
			i.env = tc.env
			if tc.lay != nil {
				tc.lay(i)
			}
			_, _, err := i.ask()
			must.NoError(t, err)
			for _, at := range i.overmounted() {
				must.StrContains(t, at, shadow.ContainerDir, must.Sprint("nothing here is a copy of the driver"))
			}
		})
	}
}
