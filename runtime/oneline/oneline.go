// Package oneline escapes and shortens errors for logs and terminals.
package oneline

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/tranche-gpu/tranche/internal/printable"
)

// maxBytes bounds a line. Errors without untrusted text are far shorter.
const maxBytes = 4096

// Of returns an error as one printable line. An error may quote untrusted text: a line break would forge a line of a log, an
// escape sequence could write anything on the operator's terminal, and a megabyte would hide the rest.
func Of(err error) string { return of(err.Error()) }

func of(text string) string {
	text = strings.ReplaceAll(text, "\n", "; ")
	rest := 0
	if len(text) > maxBytes {
		cut := maxBytes
		for cut > 0 && !utf8.RuneStart(text[cut]) {
			cut--
		}
		text, rest = text[:cut], len(text)-cut
	}
	text = printable.Text(text)
	if rest > 0 {
		text += fmt.Sprintf("… (and %d bytes more)", rest)
	}
	return text
}

// Excerpt quotes the first 60 bytes of an untrusted text.
func Excerpt(text string) string {
	const most = 60
	if len(text) > most {
		text = text[:most] + "…"
	}
	return fmt.Sprintf("%q", text)
}
