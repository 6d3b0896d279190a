package drivercopies

import (
	"bytes"
	"encoding/binary"
	"os"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/runtime/shadowtest"
)

func TestLibrarySONAME(t *testing.T) {
	libc, err := os.Open("/lib/" + triplet + "/libc.so.6")
	must.NoError(t, err)
	defer libc.Close()
	must.Eq(t, "libc.so.6", librarySONAME(libc))

	content := shadowtest.Library(t, "libcuda.so.1")
	must.Eq(t, "libcuda.so.1", librarySONAME(bytes.NewReader(content)))
	// Sections are nothing to the loader: they may be missing, or be nonsense.
	for _, offset := range []uint64{0, 1, 1 << 62} {
		stripped := bytes.Clone(content)
		binary.LittleEndian.PutUint64(stripped[40:], offset)
		must.Eq(t, "libcuda.so.1", librarySONAME(bytes.NewReader(stripped)))
	}
	for size := range 300 { // a library that is cut off
		must.Eq(t, "", librarySONAME(bytes.NewReader(content[:size])))
	}
	must.Eq(t, "", librarySONAME(bytes.NewReader(bytes.Repeat([]byte("text\n"), 100))))
}

// FuzzLibrarySONAME reads a library that the image's author has made.
func FuzzLibrarySONAME(f *testing.F) {
	header := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 200)...)
	f.Add(header)
	header = bytes.Clone(header)
	header[4] = 1
	f.Add(header)
	if content, err := os.ReadFile("/lib/" + triplet + "/libdl.so.2"); err == nil {
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		if name := librarySONAME(bytes.NewReader(content)); !bytes.Contains(content, []byte(name)) || len(name) >= maxSONAMEBytes {
			t.Fatalf("the library has no name %q", name)
		}
	})
}
