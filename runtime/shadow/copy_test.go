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
		content, err := shadow.OfCopy(library, soname, 12)
		must.NoError(t, err)
		file := filepath.Join(t.TempDir(), soname)
		must.NoError(t, os.WriteFile(file, content, 0o755))
		opened, err := elf.Open(file)
		must.NoError(t, err)
		needed, err := opened.ImportedLibraries()
		must.NoError(t, errors.Join(err, opened.Close()))
		must.Eq(t, []string{want, "libc.so.6"}, needed)
	}
}

func TestOfCopy_Refuses(t *testing.T) {
	library := shadowtest.Library(t, shadow.CUDA, "$ORIGIN/"+shadow.Behind(shadow.CUDA))
	for name, content := range map[string][]byte{
		"the driver": shadowtest.Library(t, shadow.CUDA, "libc.so.6"),
		"two":        bytes.Repeat(library, 2),
		"nothing":    nil,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := shadow.OfCopy(content, shadow.CUDA, 0)
			must.ErrorContains(t, err, "of one version")
		})
	}
	_, err := shadow.OfCopy(library, shadow.CUDA, 10_000) // the names would not be equally long
	must.ErrorContains(t, err, "of one version")
}
