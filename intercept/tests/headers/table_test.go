package headers

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// row is a row of the shadow library's table, or a line of testdata/functions.txt, which has the same of NVIDIA's driver.
type row struct {
	name   string
	since  int
	stream string
	symbol string
}

var (
	tableRow   = regexp.MustCompile(`\bX\((\w+), "(\w+)", (\d+), (ANY|LEGACY|PER_THREAD),`)
	tableUntil = regexp.MustCompile(`#define CUDA_SHADOWED_UNTIL (\d+)`)
)

func number(t *testing.T, text string) int {
	t.Helper()
	value, err := strconv.Atoi(text)
	must.NoError(t, err)
	return value
}

func table(t *testing.T) (until int, rows []row) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "intercept/driver/shadowed.h"))
	must.NoError(t, err)
	governed, err := os.ReadFile(filepath.Join(root, "intercept/driver/governed.h"))
	must.NoError(t, err)
	version := tableUntil.FindSubmatch(text)
	must.NotNil(t, version)
	streams := strings.NewReplacer("ANY", "any", "LEGACY", "legacy", "PER_THREAD", "per-thread")
	for _, match := range tableRow.FindAllStringSubmatch(string(text)+string(governed), -1) {
		rows = append(rows, row{match[2], number(t, match[3]), streams.Replace(match[4]), match[1]})
	}
	return number(t, string(version[1])), rows
}

func answers(t *testing.T) (until int, rows []row) {
	t.Helper()
	text, err := os.ReadFile("testdata/functions.txt")
	must.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		switch fields := strings.Fields(line); {
		case strings.HasPrefix(line, "#"):
		case fields[0] == "until":
			until = number(t, fields[1])
		default:
			must.Len(t, 4, fields)
			rows = append(rows, row{fields[0], number(t, fields[1]), fields[2], fields[3]})
		}
	}
	return until, rows
}

// chosen is the symbol that a table gives for a name, or "".
func chosen(rows []row, name string, version int, stream string) string {
	symbol, newest := "", -1
	for _, row := range rows {
		if row.name == name && row.since <= version && row.since > newest && (row.stream == "any" || row.stream == stream) {
			symbol, newest = row.symbol, row.since
		}
	}
	return symbol
}

// The name decides where the driver answers with a pointer of its own, so the table must have all forms of each function.
func TestTableHasTheDriversVersions(t *testing.T) {
	tableUntil, ours := table(t)
	driverUntil, theirs := answers(t)
	must.Eq(t, driverUntil, tableUntil)
	must.Greater(t, 100, len(ours))
	known := map[string]bool{}
	for _, answer := range theirs {
		known[answer.symbol] = true
		for _, stream := range []string{"legacy", "per-thread"} {
			if answer.stream != "any" && answer.stream != stream {
				continue
			}
			versions := []int{answer.since}
			if answer.since > 11000 {
				versions = append(versions, answer.since-10) // the driver was asked for each
			}
			for _, version := range versions {
				want, got := chosen(theirs, answer.name, version, stream), chosen(ours, answer.name, version, stream)
				if got != want {
					t.Errorf("%s of CUDA %d, %s stream: the driver gives %q, the table %q", answer.name, version, stream, want, got)
				}
			}
		}
	}
	for _, row := range ours {
		if !known[row.symbol] {
			t.Errorf("%s is in the table, and testdata/functions.txt does not say what the driver answers", row.symbol)
		}
		if got := chosen(theirs, row.name, driverUntil, "legacy"); got == "" {
			t.Errorf("%s is not a name that the driver knows", row.name)
		}
	}
}
