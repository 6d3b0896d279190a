package printable

import (
	"testing"

	"github.com/shoenig/test/must"
)

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
