// Package text writes values as people read them.
package text

import (
	"fmt"
	"strconv"

	"github.com/tranche-gpu/tranche/governor/status"
)

// Unknown is shown for values that are not known.
const Unknown = "-"

// Bytes writes an amount of memory with one digit behind the point.
func Bytes(bytes uint64) string {
	switch {
	case bytes >= 1<<30 && bytes%(1<<30) == 0:
		return fmt.Sprintf("%d GiB", bytes>>30)
	case bytes >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
	case bytes >= 1<<20 || bytes == 0:
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
	return fmt.Sprintf("%d KiB", bytes>>10)
}

// OptionalBytes is Bytes of what may be unknown.
func OptionalBytes(bytes *uint64) string {
	if bytes == nil {
		return Unknown
	}
	return Bytes(*bytes)
}

// OptionalCount writes a number that may be unknown.
func OptionalCount(count *int) string {
	if count == nil {
		return Unknown
	}
	return strconv.Itoa(*count)
}

// Scaled writes a number of NVML's, which may be unknown, as a whole number of another unit. The unit has the space before it, if any.
func Scaled(value *int64, scale float64, unit string) string {
	if value == nil {
		return Unknown
	}
	return strconv.FormatFloat(float64(*value)*scale, 'f', 0, 64) + unit
}

// Ratio writes a ratio from 0 to 1, which may be unknown, in percent.
func Ratio(ratio *float64) string {
	if ratio == nil {
		return Unknown
	}
	return strconv.FormatFloat(*ratio*100, 'f', 0, 64) + "%"
}

// GiBHours writes an amount of memory times hours, which may be unknown, with one digit behind the point.
func GiBHours(hours *float64) string {
	if hours == nil {
		return Unknown
	}
	return strconv.FormatFloat(*hours, 'f', 1, 64)
}

// Had writes the part of its GPU's time that a claim had in the last ten seconds, as the governor says. While it is alone on the
// GPU, nothing is counted.
func Had(turns *status.Claim) string {
	switch {
	case turns == nil:
		return Unknown
	case turns.Alone:
		return "alone"
	}
	return fmt.Sprintf("%.0f%%", 100*turns.RecentPart)
}

// Index writes the index of a GPU, -1 if it is unknown.
func Index(index int) string {
	if index < 0 {
		return Unknown
	}
	return strconv.Itoa(index)
}
