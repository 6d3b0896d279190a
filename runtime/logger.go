package runtime

import "github.com/tranche-gpu/tranche/claim"

// Logger receives what an operator may want to know: a message, and names and values in turns. An hclog.Logger is one.
// tranche-runtime has nobody to tell, and is spared the start of a logging library.
type Logger interface {
	claim.Logger
	Debug(message string, namesAndValues ...any)
}

// silent is the Logger of a configuration that has none.
type silent struct{}

func (silent) Debug(string, ...any) {}
func (silent) Info(string, ...any)  {}
func (silent) Warn(string, ...any)  {}
