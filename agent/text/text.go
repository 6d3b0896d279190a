// Package text makes names of others safe to show: names of jobs, containers and products are any bytes.
package text

import (
	"strings"
	"unicode"
)

// How many characters are shown of a name, and of a message.
const maxRunes, maxMessageRunes = 256, 2048

// Printable returns a name as valid UTF-8 on one line, with characters that control a terminal, break a line, or change the
// direction of text replaced by U+FFFD, and of a bounded length. It does not escape markup.
func Printable(name string) string { return printable(name, maxRunes) }

// Message is Printable for errors, whose remedies are at their ends.
func Message(message string) string { return printable(message, maxMessageRunes) }

func printable(text string, most int) string {
	var b strings.Builder
	count := 0
	for _, r := range strings.ToValidUTF8(text, string(unicode.ReplacementChar)) {
		if count++; count > most {
			b.WriteRune('…')
			break
		}
		if r != ' ' && !unicode.IsGraphic(r) || unicode.In(r, unicode.Zl, unicode.Zp, unicode.Cf, unicode.Co) {
			r = unicode.ReplacementChar
		}
		b.WriteRune(r)
	}
	return b.String()
}
