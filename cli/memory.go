package cli

import (
	"fmt"
	"math/bits"
	"regexp"
	"strconv"
	"strings"
)

// granularityBytes is the unit in which a GPU hands out memory.
const granularityBytes = 2 << 20

// memoryUnits are spelled out, since "8G" means different amounts to different people.
var memoryUnits = map[string]uint64{
	"MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
	"MB": 1e6, "GB": 1e9, "TB": 1e12,
}

var memorySize = regexp.MustCompile(`^([0-9]+) ?([KMGT]i?B)$`)

// maxMemoryBytes is what a region can account for: 4 TiB.
const maxMemoryBytes = 4 << 40

// parseMemory reads an amount of GPU memory, and rounds it down to what a GPU can hand out.
func parseMemory(text string) (uint64, error) {
	const allowed = `it has to be a whole number with a unit: MiB, GiB or TiB (powers of 1024) or MB, GB or TB ` +
		`(powers of 1000), such as 512MiB, 1GiB or 8GB`
	m := memorySize.FindStringSubmatch(strings.TrimSpace(text))
	if m == nil {
		return 0, fmt.Errorf("%q is not an amount of memory: %s", text, allowed)
	}
	number, err := strconv.ParseUint(m[1], 10, 64)
	unit, known := memoryUnits[m[2]]
	if err != nil || !known {
		return 0, fmt.Errorf("%q is not an amount of memory: %s", text, allowed)
	}
	high, bytes := bits.Mul64(number, unit)
	if high != 0 || bytes > maxMemoryBytes {
		return 0, fmt.Errorf("%s is more than a limit can be, which is %s", text, formatMemory(maxMemoryBytes))
	}
	bytes -= bytes % granularityBytes
	if bytes == 0 {
		return 0, fmt.Errorf("%s is less than the %s in which a GPU hands out memory: %s",
			text, formatMemory(granularityBytes), allowed)
	}
	return bytes, nil
}

// formatMemory writes bytes for people: whole GiB where it is, else MiB.
func formatMemory(bytes uint64) string {
	if bytes != 0 && bytes%(1<<30) == 0 {
		return fmt.Sprintf("%dGiB", bytes>>30)
	}
	return fmt.Sprintf("%dMiB", bytes>>20)
}
