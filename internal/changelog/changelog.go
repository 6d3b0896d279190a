// Package changelog has periodic checks log their outcome only when it changes.
package changelog

import "sync"

// Log keeps the last outcome of each periodic check, so that an outcome is logged only when it changes. The zero
// value is ready to use.
type Log struct {
	mu   sync.Mutex
	last map[string]string
}

// Changed records the outcome of a check and reports whether it differs from the last one. The first outcome of a check
// always does.
func (l *Log) Changed(check string, outcome error) bool {
	text := "fine"
	if outcome != nil {
		text = outcome.Error()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == nil {
		l.last = make(map[string]string)
	}
	was := l.last[check]
	l.last[check] = text
	return was != text
}
