package percent

import (
	"testing"

	"github.com/shoenig/test/must"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]int{"30": 300, " 30 % ": 0, "30%": 300, " 30% ": 300, "33.3": 333, "0.1": 1, "100": 1000, "100.0%": 1000, "5.70": 57} {
		got, err := Parse(text)
		if want == 0 {
			must.Error(t, err, must.Sprint(text))
			continue
		}
		must.NoError(t, err, must.Sprint(text))
		must.Eq(t, want, got, must.Sprint(text))
	}
	for _, text := range []string{"", "%", "half", "0", "-1", "0.05", "33.33", "100.1", "1000", "NaN", "Inf", "1e400", "30%%"} {
		_, err := Parse(text)
		must.ErrorContains(t, err, "a number of percent from 0.1 to 100", must.Sprint(text))
	}
}

func TestFormat(t *testing.T) {
	for thousandths, want := range map[int]string{1: "0.1%", 57: "5.7%", 300: "30%", 1000: "100%"} {
		must.Eq(t, want, Format(thousandths))
	}
}
