package headers

import (
	"os"
	"os/exec"
	"path/filepath"
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

// printTable prints the version that the table is complete for, and a line for each of its rows.
const printTable = `#include <stdio.h>
#define TRANCHE_GOVERNED
#include "intercept/driver/shadowed.h"
#define X(symbol, name, since, stream, ...) printf("%s %d %s %s\n", name, since, #stream, #symbol);
int main(void) {
    printf("until %d\n", CUDA_SHADOWED_UNTIL);
    CUDA_SHADOWED(X)
}
`

func number(t *testing.T, text string) int {
	t.Helper()
	value, err := strconv.Atoi(text)
	must.NoError(t, err)
	return value
}

// rowsOf reads what printTable prints, and testdata/functions.txt, which has comments too.
func rowsOf(t *testing.T, text string) (until int, rows []row) {
	t.Helper()
	for line := range strings.Lines(text) {
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

func table(t *testing.T) (until int, rows []row) {
	t.Helper()
	for _, header := range []string{"shadowed.h", "governed.h"} { // the go command caches a result by the files that a test opens
		_, err := os.Stat(filepath.Join(root, "intercept/driver", header))
		must.NoError(t, err)
	}
	program := filepath.Join(t.TempDir(), "table")
	_, err := compiler(filepath.Join(root, "intercept")).run(printTable, "-o", program)
	must.NoError(t, err)
	printed, err := exec.CommandContext(t.Context(), program).Output()
	must.NoError(t, err)
	streams := strings.NewReplacer("ANY", "any", "LEGACY", "legacy", "PER_THREAD", "per-thread")
	return rowsOf(t, streams.Replace(string(printed)))
}

func answers(t *testing.T) (until int, rows []row) {
	t.Helper()
	text, err := os.ReadFile("testdata/functions.txt")
	must.NoError(t, err)
	return rowsOf(t, string(text))
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
