package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// row is one thing that the demo promises, with what was seen.
type row struct {
	promise, seen string
	held          bool
}

// table collects what the demo has seen.
type table struct{ rows []row }

// add notes whether a promise held, and what was seen of it.
func (t *table) add(held bool, promise, format string, args ...any) {
	t.rows = append(t.rows, row{promise: promise, seen: fmt.Sprintf(format, args...), held: held})
}

// held says whether everything did.
func (t *table) held() bool {
	for _, r := range t.rows {
		if !r.held {
			return false
		}
	}
	return len(t.rows) > 0
}

func (t *table) print(w io.Writer) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "PROMISE\tSEEN\t")
	fmt.Fprintln(tw, "-------\t----\t")
	for _, r := range t.rows {
		verdict := "ok"
		if !r.held {
			verdict = "FAILED"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\n", r.promise, strings.ReplaceAll(r.seen, "\n", " "), verdict)
	}
	tw.Flush()
}
