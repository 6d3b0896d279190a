// Package recoverable marks errors of a task's start after which Nomad starts the task again, by its restart block. Nomad's own
// type for this is under the Business Source License.
package recoverable

// Error marks err. What wraps the result is not marked: Nomad looks at the outermost error only, by its method IsRecoverable.
func Error(err error) error { return marked{err} }

// Is reports whether Nomad starts a task again after err.
func Is(err error) bool {
	// As Nomad does it: errors.As would find what Nomad does not see.
	of, ok := err.(interface{ IsRecoverable() bool }) //nolint:errorlint
	return ok && of.IsRecoverable()
}

type marked struct{ error }

func (marked) IsRecoverable() bool { return true }

func (m marked) Unwrap() error { return m.error }
