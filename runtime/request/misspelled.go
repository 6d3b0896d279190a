package request

import (
	"fmt"
	"slices"
	"strings"
)

// prefix is that of all of Tranche's environment variables.
const prefix = "TRANCHE_"

// variables are all environment variables that have a meaning in a container, whoever sets them; variablePrefixes those whose
// names end differently each time.
var (
	variables = []string{
		MemoryEnv, GPUEnv, ComputeEnv, "TRANCHE_GPU_HOST_MEMORY", "TRANCHE_REGIONS", "TRANCHE_VISIBLE_GPU", "TRANCHE_CONFIG",
	}
	variablePrefixes = []string{"TRANCHE_CLAIM_", cdiPrefix}
)

// maxMisspelled bounds how many warnings there are, and maxNameBytes how much of a name they quote.
const (
	maxMisspelled = 3
	maxNameBytes  = 64
)

// Misspelled returns a warning for each variable that is named like one of Tranche's and has no meaning: a request that is
// misspelled is none, and its container starts without a limit or without a GPU.
func Misspelled(names []string) []string {
	var warnings []string
	for _, name := range slices.Sorted(slices.Values(names)) {
		if !strings.HasPrefix(name, prefix) || slices.Contains(variables, name) || slices.ContainsFunc(variablePrefixes, func(p string) bool {
			return strings.HasPrefix(name, p)
		}) {
			continue
		}
		if len(warnings) == maxMisspelled {
			return append(warnings, "there are more such environment variables")
		}
		warnings = append(warnings, fmt.Sprintf("the environment variable %q has no meaning: %s", strings.ToValidUTF8(name[:min(len(name), maxNameBytes)], "?"),
			advice(name)))
	}
	return warnings
}

// advice names the variable that was meant, if that is clear.
func advice(name string) string {
	const near = 4 // more changes than that make another name
	best, least := "", near
	for _, known := range variables {
		if changes := distance(name, known, near); changes < least {
			best, least = known, changes
		}
	}
	if best == "" {
		return "there are " + strings.Join(variables[:3], ", ") + " and others, see docs/without-nomad.md"
	}
	return "did you mean " + best + "?"
}

// distance returns how many letters have to be added, removed or replaced to make one text of the other: most if it is more.
func distance(a, b string, most int) int {
	if len(a)-len(b) >= most || len(b)-len(a) >= most {
		return most
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			changed := diagonal
			if a[i] != b[j] {
				changed++
			}
			diagonal = row[j+1]
			row[j+1] = min(changed, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
