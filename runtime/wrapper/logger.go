package wrapper

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/tranche-gpu/tranche/runtime/oneline"
)

// logger writes warnings to the log file in the arguments and, if there is one, to the standard error. It drops all else.
type logger struct {
	inv    invocation
	stderr io.Writer
}

// Debug implements edit.Logger.
func (logger) Debug(string, ...any) {}

// Info implements edit.Logger.
func (logger) Info(string, ...any) {}

// Warn implements edit.Logger.
func (l logger) Warn(message string, namesAndValues ...any) {
	var pairs []string
	for i := 0; i+1 < len(namesAndValues); i += 2 {
		pairs = append(pairs, fmt.Sprintf("%v: %v", namesAndValues[i], namesAndValues[i+1]))
	}
	if len(pairs) > 0 {
		message += " (" + strings.Join(pairs, ", ") + ")"
	}
	line := oneline.Of(errors.New(message))
	if l.stderr != nil {
		l.inv.warn(l.stderr, line)
		return
	}
	_ = l.inv.logLine("warning", line)
}
