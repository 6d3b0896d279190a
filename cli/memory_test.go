package cli

import (
	"testing"

	"github.com/shoenig/test/must"
)

func TestParseMemory(t *testing.T) {
	for text, want := range map[string]uint64{
		"1GiB": 1 << 30, "512MiB": 512 << 20, "8 GiB": 8 << 30, "4TiB": 4 << 40, "2MiB": 2 << 20, "3MiB": 2 << 20,
		"8GB":   8_000_000_000 / granularityBytes * granularityBytes,
		"500MB": 476 << 20, "1TB": 1_000_000_000_000 / granularityBytes * granularityBytes,
	} {
		got, err := parseMemory(text)
		must.NoError(t, err)
		must.Eq(t, want, got, must.Sprint(text))
	}
	for text, want := range map[string]string{
		"":                      "not an amount of memory",
		"1":                     "such as 512MiB, 1GiB or 8GB",
		"8G":                    "MiB, GiB or TiB (powers of 1024) or MB, GB or TB (powers of 1000)",
		"1.5GiB":                "whole number with a unit",
		"-1GiB":                 "not an amount of memory",
		"1gib":                  "not an amount of memory",
		"1KiB":                  "not an amount of memory",
		"0GiB":                  "less than the 2MiB",
		"1MiB":                  "less than the 2MiB",
		"5TiB":                  "more than a limit can be, which is 4096GiB",
		"18446744073709551TiB":  "more than a limit can be",
		"99999999999999999999B": "not an amount of memory",
	} {
		_, err := parseMemory(text)
		must.ErrorContains(t, err, want, must.Sprint(text))
	}
}
