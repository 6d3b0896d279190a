// Package top shows a node's GPUs and claims in a terminal, like top(1) its processes, or once as text or JSON.
package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/charmbracelet/x/term"

	"github.com/tranche-gpu/tranche/agent/monitor"
	"github.com/tranche-gpu/tranche/internal/printable"
)

// MinInterval is the least time between two snapshots.
const MinInterval = 500 * time.Millisecond

// Options are what to show.
type Options struct {
	// Snapshot returns the state of the node.
	Snapshot func(context.Context) *monitor.Snapshot
	// Node is its name.
	Node     string
	Interval time.Duration
	// Sort names an order, and Filter has to occur in the claims that are shown.
	Sort, Filter string
	// Dormant is whether dormant claims are shown without a filter, too.
	Dormant bool
}

func (o Options) check() error {
	if o.Interval < MinInterval {
		return fmt.Errorf("--interval must be at least %s, got %s", MinInterval, o.Interval)
	}
	if !slices.Contains(orderNames(), o.Sort) {
		return fmt.Errorf("--sort: %q is no order; there are %s", o.Sort, strings.Join(orderNames(), ", "))
	}
	return nil
}

func (o Options) order() int { return slices.Index(orderNames(), o.Sort) }

// Run shows the node in a terminal until the user quits or the context ends.
func Run(ctx context.Context, o Options, in io.Reader, out io.Writer, environ []string) error {
	if err := o.check(); err != nil {
		return err
	}
	terminal, ok := out.(term.File)
	if !ok || !term.IsTerminal(terminal.Fd()) {
		return fmt.Errorf("the output is no terminal; print the state with --once, or as JSON with --json")
	}
	program := tea.NewProgram(newModel(ctx, o), tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out),
		tea.WithEnvironment(environ))
	if _, err := program.Run(); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// ErrIncomplete is returned with a state that lacks the GPUs or the ledger; what was written says why.
var ErrIncomplete = errors.New("the GPUs or the ledger cannot be read")

// complete returns ErrIncomplete if a script must not take the snapshot for all that there is.
func complete(s *monitor.Snapshot) error {
	if s.Errors[monitor.SourceNVML] != "" || s.Errors[monitor.SourceLedger] != "" {
		return ErrIncomplete
	}
	return nil
}

const (
	// onceWidth is how wide the bars are in a text, and onceColumns the window whose columns its table has.
	onceWidth, onceColumns = 100, 200
	// mostFor is how much of what a claim is for a text has.
	mostFor = 60
)

// hiddenClaims says how many claims are hidden.
func hiddenClaims(count int) string {
	if count == 1 {
		return "1 dormant claim is"
	}
	return fmt.Sprintf("%d dormant claims are", count)
}

// Once writes the state of the node as text, without colors. The error may be ErrIncomplete.
func Once(ctx context.Context, o Options, out io.Writer) error {
	if err := o.check(); err != nil {
		return err
	}
	s := o.Snapshot(ctx)
	var b strings.Builder
	fmt.Fprintln(&b, title(s, o.Node, ""))
	for _, line := range problems(s) {
		fmt.Fprintln(&b, line)
	}
	for _, line := range gpuLines(s, onceWidth) {
		fmt.Fprintln(&b, line)
	}
	if len(s.GPUs) > 0 {
		fmt.Fprintln(&b, legend())
	}
	claims, hidden := o.selected(s)
	titles, rows := shown(s, claims, onceColumns)
	for _, row := range rows {
		row[0] = ansi.Truncate(row[0], mostFor, "…")
	}
	writeTable(&b, titles, rows)
	if hidden > 0 {
		fmt.Fprintf(&b, "\n%s hidden; show with --dormant\n", hiddenClaims(hidden))
	}
	if _, err := io.WriteString(out, ansi.Strip(b.String())); err != nil {
		return err
	}
	return complete(s)
}

// writeTable writes rows below the titles, each column as wide as its widest cell.
func writeTable(b *strings.Builder, columns []column, rows [][]string) {
	if len(rows) == 0 {
		fmt.Fprintln(b, "No claims.")
		return
	}
	fmt.Fprintln(b)
	widths := make([]int, len(columns))
	titles := make([]string, len(columns))
	for i, c := range columns {
		titles[i], widths[i] = c.title, len(c.title)
		for _, row := range rows {
			widths[i] = max(widths[i], ansi.StringWidth(row[i]))
		}
	}
	for _, row := range append([][]string{titles}, rows...) {
		var line strings.Builder
		for i, cell := range row {
			line.WriteString(cell + strings.Repeat(" ", widths[i]-ansi.StringWidth(cell)+2))
		}
		fmt.Fprintln(b, strings.TrimRight(line.String(), " "))
	}
}

// title is the first line; more is what it says beside the node's name, which is long at times.
func title(s *monitor.Snapshot, node, more string) string {
	return fmt.Sprintf("tranche top  %s%s  %s, %s  %s", s.Time.Format("15:04:05"), more, counted(len(s.GPUs), "GPU"),
		counted(len(s.Claims), "claim"), printable.Text(node))
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// problems are lines about what is wrong with the node.
func problems(s *monitor.Snapshot) []string {
	var lines []string
	for _, source := range monitor.Sources {
		if cause, failed := s.Errors[source]; failed {
			lines = append(lines, fmt.Sprintf("%s cannot be read: %s", source, printable.Text(cause)))
		}
	}
	for _, g := range s.GPUs {
		if g.Error != "" && s.Errors[monitor.SourceNVML] == "" {
			lines = append(lines, fmt.Sprintf("GPU %d does not answer: %s", g.Index, printable.Text(g.Error)))
		}
		if g.Unhealthy != nil {
			lines = append(lines, fmt.Sprintf("GPU %d is unhealthy: %s", g.Index, printable.Text(g.Unhealthy.Problem)))
		}
	}
	return lines
}
