// Package size reads and writes amounts of memory as people state them: in options, on command lines, in messages.
//
// Units are spelled out, since "8G" means different amounts to different people. Nothing is rounded: an amount that
// would have to be is refused, so that what was asked for is what is had.
package size

import (
	"fmt"
	"math/bits"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

const (
	// GPUUnit is the unit in which a GPU hands out memory.
	GPUUnit = 2 << 20

	// MiB is the unit in which amounts are stated: everything that shows one shows whole MiB.
	MiB = 1 << 20

	// most is what a claim can account for.
	most = 16 << 40
)

var units = map[string]uint64{
	"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
	"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
}

var amount = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([0-9]+) ?([KMGT]i?B)$`) })

// Parse reads an amount of memory in bytes. It is a whole number of MiB, whatever the unit; "0" needs none.
func Parse(text string) (uint64, error) {
	trimmed := strings.TrimSpace(text)
	if trimmed == "0" {
		return 0, nil
	}
	match := amount().FindStringSubmatch(trimmed)
	if match == nil {
		return 0, fmt.Errorf("%q is not an amount of memory: it must be a whole number with the unit KiB, MiB, GiB or "+
			"TiB (powers of 1024) or KB, MB, GB or TB (powers of 1000), such as \"1GiB\" or \"512MiB\"", text)
	}
	number, err := strconv.ParseUint(match[1], 10, 64)
	high, bytes := bits.Mul64(number, units[match[2]])
	if err != nil || high != 0 || bytes > most {
		return 0, fmt.Errorf("%s is more than a claim can account for, which is %s", trimmed, Format(most))
	}
	if bytes%MiB != 0 {
		return 0, fmt.Errorf("%s is not a whole number of MiB, and nothing is rounded: %s", trimmed, neighbours(bytes))
	}
	return bytes, nil
}

// neighbours names the amounts around one that is not a whole number of MiB.
func neighbours(bytes uint64) string {
	below := bytes / MiB
	if below == 0 {
		return "1MiB is the least"
	}
	return fmt.Sprintf("%dMiB and %dMiB are next to it", below, below+1)
}

// ParseGPU reads an amount of memory of a GPU, which is not nothing, and a multiple of the GPU's unit.
func ParseGPU(text string) (uint64, error) {
	bytes, err := Parse(text)
	if err != nil {
		return 0, err
	}
	if bytes == 0 || bytes%GPUUnit != 0 {
		return 0, fmt.Errorf("%s is not a multiple of %s, the unit in which a GPU hands out memory",
			strings.TrimSpace(text), Format(GPUUnit))
	}
	return bytes, nil
}

// Format writes an amount in the largest unit, GiB or MiB, that needs no fraction. Below 1 MiB it is cut off.
func Format(bytes uint64) string {
	if bytes != 0 && bytes%(1<<30) == 0 {
		return fmt.Sprintf("%dGiB", bytes>>30)
	}
	return fmt.Sprintf("%dMiB", bytes>>20)
}
