package hooks

import (
	"bytes"
	"strings"
	"testing"
	"unicode"

	"github.com/shoenig/test/must"
)

// FuzzState reads a container's state as a runtime hands it to a hook.
func FuzzState(f *testing.F) {
	for _, seed := range []string{
		"", "{}", "null", "[]", `{"id":"c1","pid":1,"bundle":"/b","annotations":{"a":"b"}}`, `{"id":"c1","id":"../c2"}`,
		`{"id":"a\u0000"}`, `{"ID":"c1","pid":1e99}`, `{"id":"c1","pid":9223372036854775808}`, `{"id":"\ud800"}`, "{\"id\":\"\xff\"}",
		`{"id":"c1"}{"id":"c2"}`, strings.Repeat(`{"a":`, 20000),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		state, err := readState(bytes.NewReader(content))
		if err != nil {
			must.Nil(t, state)
			return
		}
		// It goes into file names of messages, logs and the ledger.
		must.NotEq(t, "", state.ID)
		must.LessEq(t, maxIDBytes, len(state.ID))
		must.False(t, strings.ContainsFunc(state.ID, func(r rune) bool { return !unicode.IsPrint(r) || r == '/' }))
	})
}

// FuzzOptions reads a hook's command line; its arguments are separated by zero bytes.
func FuzzOptions(f *testing.F) {
	for _, seed := range []string{
		"", "--state-dir\x00/s\x00--run-dir\x00/r\x00--claim\x0000000000", "--claim=a\x00--claim\x00b", "-claim", "--\x00x", "---", "--token=x",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		opts, err := parseOptions(strings.Split(line, "\x00"))
		if err != nil {
			return
		}
		must.NotEq(t, "", opts.stateDir)
		must.NotEq(t, "", opts.runDir)
		must.SliceNotEmpty(t, opts.claims)
	})
}
