package printable

import (
	"errors"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

func TestFprintf(t *testing.T) {
	type named string
	var b strings.Builder
	Fprintf(&b, "%-4s|%d|%v|%s\n", named("a\x1b"), 7, errors.New("b\nc"), "d\te")
	must.Eq(t, "a\\x1b|7|b\\nc|d\\te\n", b.String())
	must.Eq(t, "a\nb\\x1b", Lines("a\nb\x1b"))
}

func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"":                          "",
		"web":                       "web",
		"Büro 7 模型":                 "Büro 7 模型",
		`C:\x "quoted"`:             `C:\x "quoted"`,
		"a\nb\x1b[31m\x00":          `a\nb\x1b[31m\x00`,
		"\u202egnp.exe\u2028\u200b": `\u202egnp.exe\u2028\u200b`,
		"\u0085\U000e0001\ue000":    `\u0085\U000e0001\ue000`,
		"\xff<b>\ufffd":             "\\xff<b>\ufffd",
	} {
		must.Eq(t, want, Text(text))
		must.Eq(t, want, Text(want), must.Sprint("a text is escaped once"))
	}
}
