package cli

import (
	"os"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// A script must not go on with half of it.
func TestMain_OutputThatCannotBeWritten(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	must.NoError(t, err)
	defer full.Close()
	var stderr strings.Builder
	must.Eq(t, exitFailure, Main("v0", []string{"usage", "--schema"}, strings.NewReader(""), full, &stderr))
	must.StrContains(t, stderr.String(), "no space left on device")
}

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
