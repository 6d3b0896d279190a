package text

import (
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

func TestPrintable(t *testing.T) {
	for name, want := range map[string]string{
		"web":                       "web",
		"Büro 7 模型":                 "Büro 7 模型",
		"a\nb\x1b[31m":              "a�b�[31m",
		"\u202egnp.exe\u2028\u200b": "�gnp.exe��",
		"\xff<b>":                   "�<b>",
		strings.Repeat("x", 1000):   strings.Repeat("x", maxRunes) + "…",
	} {
		must.Eq(t, want, Printable(name))
	}
	must.Eq(t, "a\uFFFDb"+strings.Repeat("x", 1000), Message("a\nb"+strings.Repeat("x", 1000)))
	must.Eq(t, strings.Repeat("x", maxMessageRunes)+"…", Message(strings.Repeat("x", 10000)))
}
