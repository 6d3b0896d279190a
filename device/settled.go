package device

import (
	"cmp"
	"time"
)

// settled is a number that follows what is observed once that has lasted.
type settled[T cmp.Ordered] struct {
	value T
	// change is one of value that has not lasted long enough yet; nil if there is none.
	change *change[T]
}

type change[T cmp.Ordered] struct {
	since time.Time
	value T
}

// observe records what the number is now. The smallest change that has lasted takes effect. It reports whether the value has
// changed.
func (s *settled[T]) observe(value T, now time.Time, lasting time.Duration) (changed bool) {
	switch {
	case value == s.value:
		s.change = nil
		return false
	case s.change == nil || (s.change.value > s.value) != (value > s.value):
		s.change = &change[T]{since: now, value: value}
	case value > s.value:
		s.change.value = min(s.change.value, value)
	default:
		s.change.value = max(s.change.value, value)
	}
	if now.Sub(s.change.since) < lasting {
		return false
	}
	s.value, s.change = s.change.value, nil
	return true
}
