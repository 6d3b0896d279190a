package device

import "sync"

// reported remembers what was last logged about a matter, so that what is
// looked at every period is logged when it changes. Its zero value is ready.
type reported struct {
	mu   sync.Mutex
	last map[string]string
}

// changed says whether the outcome differs from the last one of the same matter.
// The first outcome always does.
func (r *reported) changed(matter string, outcome error) bool {
	text := "fine"
	if outcome != nil {
		text = outcome.Error()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.last = make(map[string]string)
	}
	was := r.last[matter]
	r.last[matter] = text
	return was != text
}
