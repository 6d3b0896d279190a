package shadow_test

import (
	"bytes"
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/runtime/shadow"
	"github.com/tranche-gpu/tranche/runtime/shadowtest"
)

func TestOfCopy(t *testing.T) {
	for soname, want := range map[string]string{
		shadow.CUDA: "/.tranche/c/0012/driver-libcuda.so", shadow.NVML: "/.tranche/c/0012/driver-libnvidia-ml.so",
	} {
		library := shadowtest.Library(t, soname, "$ORIGIN/"+shadow.Behind(soname), "libc.so.6")
		file, err := ofCopy(t, library, soname, 12)
		must.NoError(t, err)
		opened, err := elf.Open(file)
		must.NoError(t, err)
		needed, err := opened.ImportedLibraries()
		must.NoError(t, errors.Join(err, opened.Close()))
		must.Eq(t, []string{want, "libc.so.6"}, needed)
		content, err := os.ReadFile(file)
		must.NoError(t, err)
		must.Eq(t, bytes.Replace(library, []byte("$ORIGIN/"+shadow.Behind(soname)), []byte(want), 1), content)
	}
}

func TestOfCopy_Refuses(t *testing.T) {
	library := shadowtest.Library(t, shadow.CUDA, "$ORIGIN/"+shadow.Behind(shadow.CUDA))
	for name, content := range map[string][]byte{
		"the driver":          shadowtest.Library(t, shadow.CUDA, "libc.so.6"),
		"the driver's second": shadowtest.Library(t, shadow.CUDA, "libc.so.6", "$ORIGIN/"+shadow.Behind(shadow.CUDA)),
		"nothing":             nil,
	} {
		t.Run(name, func(t *testing.T) {
			file, err := ofCopy(t, content, shadow.CUDA, 0)
			must.ErrorContains(t, err, "no shadow library")
			info, err := os.Stat(file)
			must.NoError(t, err)
			must.Zero(t, info.Size())
		})
	}
	_, err := ofCopy(t, library, shadow.CUDA, 10_000)
	must.ErrorContains(t, err, "is not as long as")
}

// ofCopy returns the file of the shadow of a driver copy.
func ofCopy(t *testing.T, library []byte, soname string, number int) (string, error) {
	t.Helper()
	from := write(t, library)
	into, err := os.Create(filepath.Join(t.TempDir(), soname))
	must.NoError(t, err)
	err = shadow.OfCopy(into, from, soname, number)
	must.NoError(t, into.Close())
	return into.Name(), err
}

// write writes a library into a file of its own.
func write(t *testing.T, library []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "library")
	must.NoError(t, os.WriteFile(path, library, 0o755))
	return path
}
