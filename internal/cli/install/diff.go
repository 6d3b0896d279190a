package install

import (
	"fmt"
	"strings"

	"github.com/pmezard/go-difflib/difflib"
)

// Diff is the change as a unified difference.
func (c Change) Diff() (string, error) {
	if c.link != "" {
		return fmt.Sprintf("%s: a link to %s\n", c.file.path, c.link), nil
	}
	if c.program && c.removes {
		return fmt.Sprintf("%s: removed\n", c.file.path), nil
	}
	if c.program {
		return fmt.Sprintf("%s: %d bytes\n", c.file.path, len(c.after)), nil
	}
	from, to := c.file.path, c.file.path
	if !c.file.exists {
		from = "/dev/null"
	}
	if c.removes {
		to = "/dev/null"
	}
	return difflib.GetUnifiedDiffString(difflib.UnifiedDiff{
		A: lines(c.file.text), B: lines(c.after),
		FromFile: from, ToFile: to, Context: 3,
	})
}

// lines splits a text, with the ends of lines. What ends without one gets a note as diff(1) has it.
func lines(text []byte) []string {
	all := strings.SplitAfter(string(text), "\n")
	if last := len(all) - 1; all[last] == "" {
		return all[:last]
	} else {
		all[last] += "\n\\ No newline at end of file\n"
	}
	return all
}
