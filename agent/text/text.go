// Package text makes names of others safe to show: names of jobs, containers and products are any bytes.
package text

import (
	"strings"
	"unicode"
)

// maxRunes is how many characters of a name are shown.
const maxRunes = 256

// Printable returns a name as valid UTF-8 on one line, with characters that control a terminal, break a line, or change the
// direction of text replaced by U+FFFD, and of a bounded length. It does not escape markup.
func Printable(name string) string {
	var b strings.Builder
	count := 0
	for _, r := range strings.ToValidUTF8(name, string(unicode.ReplacementChar)) {
		if count++; count > maxRunes {
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
