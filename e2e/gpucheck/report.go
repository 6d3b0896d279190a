package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// verdict is what came of a check.
type verdict int

const (
	passed verdict = iota
	failed
	notPossible
)

func (v verdict) String() string { return []string{"passed", "FAILED", "not possible"}[v] }

// outcome is one check and what came of it.
type outcome struct {
	group, name, detail string
	verdict             verdict
}

type fillRow struct {
	title string
	*filling
}

type contextLimitRow struct {
	title        string
	got, refused event
	small        reading
	gone         reading
	large        reading
}

type shareRow struct {
	title string
	at    map[string]reading
}

type symbolList struct {
	title string
	names []string
}

// report is everything that a run came to.
type report struct {
	stopped   string // why nothing could be checked at all
	simulated bool
	machine   [][2]string
	group     string
	outcomes  []outcome

	fills         []fillRow
	contextLimits []contextLimitRow
	shares        []shareRow
	overhead      []overheadRow
	turns         []string // sentences
	symbols       []symbolList
	facts         []factRow
}

func newReport() *report { return &report{} }

func (r *report) add(name string, v verdict, detail string) {
	r.outcomes = append(r.outcomes, outcome{r.group, name, detail, v})
}

func (r *report) addFill(title string, f *filling) { r.fills = append(r.fills, fillRow{title, f}) }

func (r *report) count(v verdict) (n int) {
	for _, o := range r.outcomes {
		if o.verdict == v {
			n++
		}
	}
	return n
}

func (r *report) summary() string {
	if r.stopped != "" {
		return "nothing was checked: " + r.stopped
	}
	text := fmt.Sprintf("%d passed, %d failed, %d not possible", r.count(passed), r.count(failed), r.count(notPossible))
	if r.simulated {
		text += ", on a SIMULATED GPU"
	}
	return text
}

// markdown is the report as it is written.
func (r *report) markdown(took time.Duration) string {
	var b strings.Builder
	b.WriteString("# gpu-check\n\n")
	if r.simulated {
		b.WriteString("> **THE GPU IS SIMULATED.** There is no GPU behind these figures: they show that the checks run, and " +
			"nothing about a real GPU or driver.\n\n")
	}
	if len(r.machine) > 0 {
		var rows [][]string
		for _, row := range r.machine {
			rows = append(rows, row[:])
		}
		rows = append(rows, []string{"took", took.Round(time.Second).String()})
		table(&b, []string{"", ""}, rows)
	}
	fmt.Fprintf(&b, "**%s**\n\n", r.summary())
	r.writeBad(&b)
	r.writeOutcomes(&b)
	r.writeFills(&b)
	r.writeContextLimits(&b)
	r.writeShares(&b)
	r.writeOverhead(&b)
	r.writeTurns(&b)
	r.writeSymbols(&b)
	r.writeFacts(&b)
	return b.String()
}

// writeBad puts what failed where it is seen first.
func (r *report) writeBad(b *strings.Builder) {
	if r.count(failed) == 0 {
		return
	}
	b.WriteString("What failed:\n\n")
	for _, o := range r.outcomes {
		if o.verdict == failed {
			fmt.Fprintf(b, "- %s: %s: %s\n", o.group, o.name, oneLine(o.detail))
		}
	}
	b.WriteString("\n")
}

func (r *report) writeOutcomes(b *strings.Builder) {
	if len(r.outcomes) == 0 {
		return
	}
	b.WriteString("## Checks\n\n")
	var rows [][]string
	for _, o := range r.outcomes {
		rows = append(rows, []string{o.group, o.name, o.verdict.String(), o.detail})
	}
	table(b, []string{"group", "check", "", "figures, or why"}, rows)
}

func (r *report) writeFills(b *strings.Builder) {
	if len(r.fills) == 0 {
		return
	}
	b.WriteString("## What was counted and what was taken\n\n" +
		"`counted` is what the shadow library counts, `physical` what NVML tells of the process to somebody outside, or the change " +
		"of the whole GPU's memory where NVML tells nothing. `off` is counted minus physical: below zero, the shadow library " +
		"counts too little.\n\n")
	var rows [][]string
	for _, f := range r.fills {
		rows = append(rows, []string{
			f.title,
			size(f.atEmpty.counted) + " / " + size(f.atEmpty.physical()),
			size(f.piece.Taken),
			signed(delta(f.atOne.counted, f.atEmpty.counted)) + " / " + signed(delta(f.atOne.physical(), f.atEmpty.physical())),
			size(f.limit),
			size(f.atFull.counted) + " / " + size(f.atFull.physical()),
			signed(delta(f.atFull.counted, f.atFull.physical())),
			signed(f.atFull.device),
			signed(delta(f.atEnd.counted, f.atEmpty.counted)) + " / " + signed(delta(f.atEnd.physical(), f.atEmpty.physical())),
			size(f.atClosed.counted) + " / " + size(f.atClosed.physical()),
		})
	}
	table(b, []string{
		"way", "before (counted / physical)", "first piece", "came to", "limit", "full", "off", "whole GPU",
		"left when freed", "context released",
	}, rows)
}

func (r *report) writeContextLimits(b *strings.Builder) {
	if len(r.contextLimits) == 0 {
		return
	}
	b.WriteString("## What a context keeps for its kernels\n\n")
	var rows [][]string
	for _, l := range r.contextLimits {
		rows = append(rows, []string{
			l.title, size(l.got.Taken), fmt.Sprint(l.got.Setting), l.got.Name,
			size(l.small.counted) + " / " + size(l.small.physical()),
			size(l.gone.counted) + " / " + size(l.gone.physical()),
			size(l.refused.Taken), fmt.Sprintf("%s by %s", l.refused.Name, l.refused.Where),
			size(l.large.counted) + " / " + size(l.large.physical()),
		})
	}
	table(b, []string{
		"what", "asked for", "setting", "answer", "counted / physical", "context destroyed", "asked for too much", "answer",
		"counted / physical",
	}, rows)
}

func (r *report) writeShares(b *strings.Builder) {
	if len(r.shares) == 0 {
		return
	}
	b.WriteString("## Memory that processes share\n\nEach counted / of the whole GPU.\n\n")
	steps := []string{"empty", "made", "shared", "orphaned", "closed"}
	var rows [][]string
	for _, s := range r.shares {
		row := []string{s.title}
		for _, step := range steps {
			row = append(row, size(s.at[step].counted)+" / "+signed(s.at[step].device))
		}
		rows = append(rows, row)
	}
	table(b, []string{
		"what", "two contexts", "made by the one", "opened by the other", "the maker killed", "closed by the other",
	}, rows)
}

func (r *report) writeOverhead(b *strings.Builder) {
	if len(r.overhead) == 0 {
		return
	}
	b.WriteString("## Overhead\n\nMedians of rounds in which bare and shadowed took turns; in brackets the lowest and the highest " +
		"round.\n\n")
	var rows [][]string
	for _, o := range r.overhead {
		rows = append(rows, []string{
			o.what, spread(o.bare, o.unit), spread(o.shadowed, o.unit),
			fmt.Sprintf("%+.1f %s", median(o.shadowed)-median(o.bare), o.unit),
		})
	}
	table(b, []string{"what", "bare", "shadowed", "difference"}, rows)
}

func (r *report) writeTurns(b *strings.Builder) {
	if len(r.turns) > 0 {
		fmt.Fprintf(b, "## Compute shares\n\n%s\n\n", r.turnsParagraph())
	}
}

// turnsParagraph is what was measured of compute shares, for a page of measurements.
func (r *report) turnsParagraph() string {
	text := strings.Join(r.turns, " ")
	if r.simulated {
		text = "SIMULATED: " + text
	}
	return text
}

func spread(values []float64, unit string) string {
	if len(values) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %s (%.1f to %.1f)", median(values), unit, slices.Min(values), slices.Max(values))
}

func (r *report) writeSymbols(b *strings.Builder) {
	if len(r.symbols) == 0 {
		return
	}
	b.WriteString("## The driver's functions\n\n")
	for _, s := range r.symbols {
		names := "none"
		if len(s.names) > 0 {
			names = "`" + strings.Join(s.names, "`, `") + "`"
		}
		fmt.Fprintf(b, "- %s: %s\n", s.title, names)
	}
	b.WriteString("\n")
}

func (r *report) writeFacts(b *strings.Builder) {
	group := ""
	var rows [][]string
	flush := func() {
		if len(rows) > 0 {
			table(b, []string{"what was done", "answer", "asked for", "the driver's figure", "change, process", "change, whole GPU"},
				rows)
		}
		rows = nil
	}
	if len(r.facts) > 0 {
		b.WriteString("## What the driver does by itself\n\nMeasured bare, one step after the other; changes are since the step " +
			"before.\n\n")
	}
	for _, f := range r.facts {
		if f.Group != group {
			flush()
			group = f.Group
			fmt.Fprintf(b, "### %s\n\n", strings.ToUpper(group[:1])+group[1:])
		}
		rows = append(rows, []string{f.What, f.Name, exact(f.Asked), exact(f.Own), signed(f.process), signed(f.device)})
	}
	flush()
}

// table writes a table of Markdown.
func table(b *strings.Builder, header []string, rows [][]string) {
	line := func(cells []string) {
		for _, cell := range cells {
			fmt.Fprintf(b, "| %s ", strings.ReplaceAll(oneLine(cell), "|", "\\|"))
		}
		b.WriteString("|\n")
	}
	line(header)
	b.WriteString(strings.Repeat("|---", len(header)) + "|\n")
	for _, row := range rows {
		line(row)
	}
	b.WriteString("\n")
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

func join(failures []string) string { return strings.Join(failures, "; ") }

func shorten(text string, length int) string {
	if runes := []rune(text); len(runes) > length {
		return string(runes[:length]) + "..."
	}
	return text
}

// size writes bytes in the largest unit in which they are readable.
func size(bytes uint64) string {
	switch {
	case bytes >= 1<<30 && bytes%(1<<30) == 0:
		return fmt.Sprintf("%d GiB", bytes>>30)
	case bytes >= mib && bytes%mib == 0:
		return fmt.Sprintf("%d MiB", bytes/mib)
	case bytes >= mib:
		return fmt.Sprintf("%.2f MiB", float64(bytes)/mib)
	case bytes >= 1<<10 && bytes%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", bytes>>10)
	default:
		return fmt.Sprintf("%d B", bytes)
	}
}

// signed is size for a change.
func signed(bytes int64) string {
	if bytes < 0 {
		return "-" + size(uint64(-bytes))
	}
	return size(uint64(bytes))
}

// exact leaves nothing of a figure away, and nothing stands for none.
func exact(bytes uint64) string {
	if bytes == 0 {
		return ""
	}
	return fmt.Sprint(bytes)
}

// parseEvents reads lines that a program has printed at one go.
func parseEvents(text string) ([]event, error) {
	var events []event
	for line := range strings.Lines(text) {
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			return nil, fmt.Errorf("it says %q: %w", line, err)
		}
		events = append(events, e)
	}
	return events, nil
}
