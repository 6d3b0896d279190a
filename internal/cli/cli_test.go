package cli

import (
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

func TestMain_WrongArguments(t *testing.T) {
	for line, c := range map[string]struct {
		code int
		want string
	}{
		"bogus":               {exitFailure, `unknown command "bogus" for "tranche"`},
		"claim bogus":         {exitFailure, `unknown command "bogus" for "tranche claim"`},
		"cdi bogus":           {exitFailure, `unknown command "bogus" for "tranche cdi"`},
		"completion bogus":    {exitFailure, `unknown command "bogus" for "tranche completion"`},
		"claim release":       {exitFailure, "the usage is: tranche claim release ID…"},
		"claim set":           {exitFailure, "the usage is: tranche claim set ID"},
		"explain":             {exitFailure, "the usage is: tranche explain JOBSPEC|JOB"},
		"install bogus":       {exitFailure, "the usage is: tranche install [containerd|"},
		"run --memory 1GiB":   {exitOwnFailure, "-- COMMAND"},
		"run --bogus -- true": {exitOwnFailure, "unknown flag: --bogus"},
	} {
		t.Run(line, func(t *testing.T) {
			var stdout, stderr strings.Builder
			code := Main("v0", strings.Fields(line), strings.NewReader(""), &stdout, &stderr)
			must.Eq(t, c.code, code)
			must.Eq(t, "", stdout.String())
			must.StrContains(t, stderr.String(), c.want)
		})
	}
}
