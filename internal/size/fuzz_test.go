package size

import (
	"testing"

	"github.com/shoenig/test/must"
)

// FuzzParse reads an amount. What is one can be stated again, and is the same then.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"1GiB", "512 MiB", "0", "18446744073709551616TiB", "16384GiB", "1000MB", "١GiB", "-1GiB", " 2GiB\n", "1e3MiB"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		bytes, err := Parse(text)
		if err != nil {
			return
		}
		must.Zero(t, bytes%MiB)
		must.LessEq(t, uint64(most), bytes)
		again, err := Parse(Format(bytes))
		must.NoError(t, err)
		must.Eq(t, bytes, again)
		if gpu, err := ParseGPU(text); err == nil {
			must.Eq(t, bytes, gpu)
			must.Zero(t, gpu%GPUUnit)
			must.Positive(t, gpu)
		}
	})
}
