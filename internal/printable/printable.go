// Package printable makes names that others chose safe to show in a terminal, a log or a table: names of jobs, containers and
// products are any bytes. It does not escape markup.
package printable

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Text returns a text on one line, with every character escaped as in Go that controls a terminal, breaks a line, has no width or
// changes the direction of text. A text that is printable stays as it is.
func Text(text string) string {
	var b strings.Builder
	for len(text) > 0 {
		r, bytes := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && bytes == 1:
			fmt.Fprintf(&b, `\x%02x`, text[0])
		case strconv.IsPrint(r):
			b.WriteString(text[:bytes])
		default:
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		text = text[bytes:]
	}
	return b.String()
}
