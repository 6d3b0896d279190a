package install

import (
	"slices"
	"strings"
)

// The marks around what was written into a file that holds other things, too. In TOML and HCL they are comments.
const (
	beginMark = "# BEGIN tranche: written by `tranche install`; `tranche uninstall` removes it"
	endMark   = "# END tranche"
	// wasMark stands before a line that was changed, with the line as it was.
	wasMark = "# tranche changed the next line, which was: "
)

// marked puts lines between the marks.
func marked(lines ...string) []string {
	return slices.Concat([]string{beginMark}, lines, []string{endMark})
}

// appendMarked adds marked lines at the end, after an empty one.
func appendMarked(text string, lines []string) string {
	if text != "" {
		text = strings.TrimSuffix(text, "\n") + "\n\n"
	}
	return text + strings.Join(marked(lines...), "\n") + "\n"
}

// withoutMarked takes everything out that was written between marks, and puts changed lines back as they were. A line
// that somebody has changed again since then stays; set is what we wrote.
func withoutMarked(text, set string) string {
	var kept []string
	inside := false
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		bare := strings.TrimSpace(lines[i])
		was, changed := strings.CutPrefix(strings.TrimLeft(lines[i], " \t"), wasMark)
		switch {
		case bare == beginMark && slices.ContainsFunc(lines[i:], isEnd):
			inside = true
			if n := len(kept); n > 0 && kept[n-1] == "" {
				kept = kept[:n-1] // the empty line of appendMarked
			}
		case inside && isEnd(bare):
			inside = false
		case inside:
		case changed && i+1 < len(lines) && strings.TrimSpace(lines[i+1]) == set:
			kept = append(kept, was)
			i++
		case changed:
		default:
			kept = append(kept, lines[i])
		}
	}
	return strings.Join(kept, "\n")
}

func isEnd(line string) bool { return strings.TrimSpace(line) == endMark }

func hasMarks(text string) bool {
	return strings.Contains(text, beginMark) || strings.Contains(text, wasMark)
}
