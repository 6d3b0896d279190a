package claim

// Logger receives messages for the operator, with names and values in turns. An hclog.Logger is one. The hooks have none, and
// do not start a logging library.
type Logger interface {
	Info(message string, namesAndValues ...any)
	Warn(message string, namesAndValues ...any)
}

// silent is the Logger of a ledger without one.
type silent struct{}

func (silent) Info(string, ...any) {}
func (silent) Warn(string, ...any) {}
