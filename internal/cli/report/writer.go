package report

import (
	"fmt"
	"io"
)

// errWriter keeps the first error, so that not every line has to ask.
type errWriter struct {
	w       io.Writer
	err     error
	written bool
}

func (w *errWriter) Write(p []byte) (int, error) {
	w.written = true
	if w.err == nil {
		_, w.err = w.w.Write(p)
	}
	return len(p), w.err
}

// paragraph begins a paragraph: with an empty line, unless it is the first.
func (w *errWriter) paragraph() {
	if w.written {
		fmt.Fprintln(w)
	}
}
