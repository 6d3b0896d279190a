package claim

// Logger receives what an operator may want to know of the ledger: a message, and names and values in turns. An
// hclog.Logger is one. The hooks, which have nobody to tell, are spared the start of a logging library.
type Logger interface {
	Info(message string, namesAndValues ...any)
	Warn(message string, namesAndValues ...any)
}

// silent is the Logger of a ledger that was given none.
type silent struct{}

func (silent) Info(string, ...any) {}
func (silent) Warn(string, ...any) {}
