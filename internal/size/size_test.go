package size

import (
	"testing"

	"github.com/shoenig/test/must"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]uint64{
		"0": 0, "0GiB": 0, "1MiB": 1 << 20, "3MiB": 3 << 20, "512MiB": 512 << 20, "1GiB": 1 << 30, "8 GiB": 8 << 30,
		" 2MiB\n": 2 << 20, "4TiB": 4 << 40, "16TiB": 16 << 40, "1024KiB": 1 << 20, "1048576KiB": 1 << 30,
		"131072KB": 131_072_000, "16384MB": 16_384_000_000, "2048GB": 2_048_000_000_000,
	} {
		got, err := Parse(text)
		must.NoError(t, err)
		must.Eq(t, want, got, must.Sprint(text))
	}
}

func TestParse_Refuses(t *testing.T) {
	const none = `is not an amount of memory: it must be a whole number with the unit KiB, MiB, GiB or TiB ` +
		`(powers of 1024) or KB, MB, GB or TB (powers of 1000), such as "1GiB" or "512MiB"`
	for text, want := range map[string]string{
		"":                        `"" ` + none,
		"lots":                    `"lots" ` + none,
		"1":                       `"1" ` + none,
		"8G":                      `"8G" ` + none,
		"1gib":                    `"1gib" ` + none,
		"1PiB":                    `"1PiB" ` + none,
		"1.5GiB":                  `"1.5GiB" ` + none,
		"-1GiB":                   `"-1GiB" ` + none,
		"1GiB 2":                  `"1GiB 2" ` + none,
		"1048576B":                `"1048576B" ` + none,
		"1KiB":                    "1KiB is not a whole number of MiB, and nothing is rounded: 1MiB is the least",
		"8GB":                     "8GB is not a whole number of MiB, and nothing is rounded: 7629MiB and 7630MiB are next to it",
		"17TiB":                   "17TiB is more than a claim can account for, which is 16384GiB",
		"256TB":                   "256TB is more than a claim can account for, which is 16384GiB",
		"18446744073709551TiB":    "more than a claim can account for",
		"17592186044416MiB":       "more than a claim can account for", // 2^64 bytes
		"99999999999999999999MiB": "more than a claim can account for",
	} {
		_, err := Parse(text)
		must.ErrorContains(t, err, want, must.Sprint(text))
	}
}

func TestParseGPU(t *testing.T) {
	got, err := ParseGPU("514 MiB")
	must.NoError(t, err)
	must.Eq(t, 514<<20, got)
	for text, want := range map[string]string{
		"1025MiB": "1025MiB is not a multiple of 2MiB, the unit in which a GPU hands out memory",
		"0":       "0 is not a multiple of 2MiB",
		"0GiB":    "0GiB is not a multiple of 2MiB",
		"8GB":     "whole number of MiB",
	} {
		_, err := ParseGPU(text)
		must.ErrorContains(t, err, want)
	}
}

func TestFormat(t *testing.T) {
	for want, bytes := range map[string]uint64{
		"0MiB": 0, "1GiB": 1 << 30, "1025MiB": 1025 << 20, "143771MiB": 143771 << 20, "16384GiB": 16 << 40,
	} {
		must.Eq(t, want, Format(bytes))
	}
}
