// Package recent keeps a value that is costly to get, for as long as it is fresh enough.
package recent

import (
	"sync"
	"time"
)

// Value is such a value, or the error that came instead of it. However many want it, one at a time gets it. The zero Value has none
// yet.
type Value[T any] struct {
	mu    sync.Mutex
	taken time.Time
	value T
	err   error
}

// Get returns the value, which is from take if the one before is older than that. Callers must not modify it.
func (v *Value[T]) Get(age time.Duration, take func() (T, error)) (T, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.taken.IsZero() || time.Since(v.taken) > age {
		v.value, v.err = take()
		v.taken = time.Now()
	}
	return v.value, v.err
}

// Drop has the next Get take the value again.
func (v *Value[T]) Drop() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.taken = time.Time{}
}
