package page

import (
	"html/template"
	"strconv"

	"github.com/tranche-gpu/tranche/agent/text"
	"github.com/tranche-gpu/tranche/internal/printable"
)

// TimeFormat is how pages show times.
const TimeFormat = "2006-01-02 15:04:05 UTC"

var functions = template.FuncMap{
	"name":    printable.Text,
	"bytes":   text.Bytes,
	"percent": func(value float64) string { return strconv.FormatFloat(value, 'f', 3, 64) + "%" },
	"gpu":     text.Index,
	"count":   text.OptionalCount,
	"kinds":   func() []Kind { return kinds },
	"width":   func(value float64) string { return strconv.FormatFloat(max(0, value), 'f', 3, 64) + "%" },
}

// Kind is a kind of blocks, in the legend.
type Kind struct{ Name, Label string }

var kinds = []Kind{
	{"running", "claim of a running container"}, {"reserved", "claim without a container yet"},
	{"dormant", "dormant claim"}, {"outside", "used outside claims"}, {"driver", "the driver's own"},
	{"unhealthy", "unhealthy"}, {"free", "free"},
}
