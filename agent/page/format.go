package page

import (
	"fmt"
	"html/template"
	"strconv"

	"github.com/tranche-gpu/tranche/agent/text"
)

// unknown is shown for values that are not known.
const unknown = "-"

const timeFormat = "2006-01-02 15:04:05 UTC"

var functions = template.FuncMap{
	"name":    text.Printable,
	"bytes":   bytesText,
	"percent": func(value float64) string { return strconv.FormatFloat(value, 'f', 3, 64) + "%" },
	"gpu":     indexText,
	"count":   optionalCount,
	"kinds":   func() []kind { return kinds },
	"width":   func(value float64) string { return strconv.FormatFloat(max(0, value), 'f', 3, 64) + "%" },
}

// kind is a kind of blocks, in the legend.
type kind struct{ Name, Label string }

var kinds = []kind{
	{"running", "claim of a running container"}, {"reserved", "claim without a container yet"},
	{"dormant", "dormant claim"}, {"outside", "used outside claims"}, {"driver", "the driver's own"},
	{"unhealthy", "unhealthy"}, {"free", "free"},
}

// bytesText writes an amount of memory with one digit behind the point.
func bytesText(bytes uint64) string {
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

func optionalBytes(bytes *uint64) string {
	if bytes == nil {
		return unknown
	}
	return bytesText(*bytes)
}

func optionalCount(count *int) string {
	if count == nil {
		return unknown
	}
	return strconv.Itoa(*count)
}

func scaledText(value *int64, scale float64, digits int, unit string) string {
	if value == nil {
		return unknown
	}
	return strconv.FormatFloat(float64(*value)*scale, 'f', digits, 64) + " " + unit
}

func ratioText(ratio *float64) string {
	if ratio == nil {
		return unknown
	}
	return strconv.FormatFloat(*ratio*100, 'f', 0, 64) + " %"
}

func indexText(index int) string {
	if index < 0 {
		return unknown
	}
	return strconv.Itoa(index)
}
