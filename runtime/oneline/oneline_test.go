package oneline

import (
	"errors"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/shoenig/test/must"
)

func TestOf(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"plain":             {`read /x: "a" — no`, `read /x: "a" — no`},
		"two errors":        {"one\ntwo", "one; two"},
		"terminal escapes":  {"\x1b[2J\x1b]0;root@host\x07", `\x1b[2J\x1b]0;root@host\a`},
		"a forged line":     {"x\r\nlevel=info msg=fine", `x\r; level=info msg=fine`},
		"no UTF-8":          {"a\xff\xfeb", `a\xff\xfeb`},
		"right to left":     {"\u202egnp.exe", `\u202egnp.exe`},
		"a zero byte":       {"a\x00b", `a\x00b`},
		"longer than a log": {strings.Repeat("é", maxBytes), strings.Repeat("é", maxBytes/2) + "… (and 4096 bytes more)"},
	} {
		t.Run(name, func(t *testing.T) { must.Eq(t, tc.want, Of(errors.New(tc.text))) })
	}
}

func FuzzOf(f *testing.F) {
	for _, seed := range []string{"", "a\nb", "\x1b[2J", "\xff\xfe", strings.Repeat("é", maxBytes)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		line := of(text)
		must.True(t, utf8.ValidString(line))
		must.False(t, strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }))
		must.LessEq(t, 10*maxBytes+64, len(line))
	})
}
