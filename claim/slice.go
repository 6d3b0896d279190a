package claim

import (
	"strconv"
	"strings"
)

// sliceInfix is between a GPU's UUID and a slice's number.
const sliceInfix = "/slice-"

// sliceDigits is the least number of digits of a slice's number.
const sliceDigits = 3

// SliceName returns the name of a slice of a GPU. All programs that reserve slices have to use these names: only equal names
// show that two claims are on the same memory.
func SliceName(gpuUUID string, number int) string {
	digits := strconv.Itoa(number)
	if number >= 0 && len(digits) < sliceDigits {
		digits = "000"[len(digits):] + digits
	}
	return gpuUUID + sliceInfix + digits
}

// ParseSliceName is the inverse of SliceName.
func ParseSliceName(name string) (gpuUUID string, number int, ok bool) {
	gpuUUID, digits, ok := strings.Cut(name, sliceInfix)
	number, err := strconv.Atoi(digits)
	if !ok || err != nil || number < 0 || SliceName(gpuUUID, number) != name {
		return "", 0, false
	}
	return gpuUUID, number, true
}

// SliceSize returns the memory of one of the claim's slices. If SliceBytes is not set, the limit is the memory of all slices.
func (c *Claim) SliceSize() uint64 {
	switch {
	case c.SliceBytes > 0:
		return c.SliceBytes
	case len(c.Slices) > 0:
		return c.LimitBytes / uint64(len(c.Slices))
	}
	return 0
}

// Covers reports whether the claim has memory that a slice of another size would be. Slices are parts of the GPU's memory in
// the order of their numbers, so that those of two sizes can be compared.
func (c *Claim) Covers(gpuUUID string, number int, sliceBytes uint64) bool {
	from, to := uint64(number)*sliceBytes, uint64(number+1)*sliceBytes
	size := c.SliceSize()
	for _, name := range c.Slices {
		uuid, n, ok := ParseSliceName(name)
		if ok && uuid == gpuUUID && uint64(n)*size < to && from < uint64(n+1)*size {
			return true
		}
	}
	return false
}
