package needs

import "os"

// Long reports whether everything is to be tested, as `make test-long` does by TRANCHE_LONG=1. `make test` takes a sample of long
// matrices and fewer repetitions.
func Long() bool { return os.Getenv("TRANCHE_LONG") == "1" }

// Sample returns all cases of a matrix if Long, and the sample otherwise.
func Sample[T any](all []T, sample ...T) []T {
	if Long() {
		return all
	}
	return sample
}
