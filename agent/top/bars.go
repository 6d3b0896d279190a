package top

import (
	"fmt"
	"strings"

	"charm.land/lipgloss/v2"

	"github.com/tranche-gpu/tranche/agent/monitor"
	"github.com/tranche-gpu/tranche/agent/text"
	"github.com/tranche-gpu/tranche/claim"
)

// part is a kind of memory in a bar: each has its own mark, so that no color is needed.
type part struct {
	mark, name string
	style      lipgloss.Style
}

var (
	partUsed     = part{"█", "used in claims", lipgloss.NewStyle().Foreground(lipgloss.Color("4"))}
	partReserved = part{"▒", "reserved", lipgloss.NewStyle().Foreground(lipgloss.Color("6"))}
	partDormant  = part{"░", "dormant", lipgloss.NewStyle().Foreground(lipgloss.Color("8"))}
	partOutside  = part{"x", "outside claims", lipgloss.NewStyle().Foreground(lipgloss.Color("3"))}
	partFree     = part{"·", "free", lipgloss.NewStyle()}
	partProblem  = part{"!", "unhealthy", lipgloss.NewStyle().Foreground(lipgloss.Color("1"))}
)

// legend explains the marks.
func legend() string {
	var all []string
	for _, p := range []part{partUsed, partReserved, partDormant, partOutside, partFree, partProblem} {
		all = append(all, p.style.Render(p.mark)+" "+p.name)
	}
	return strings.Join(all, "  ") + "  UNUSED: GiB-hours, last day"
}

// minBar is how wide a bar is where the window has no room for it.
const minBar = 10

// gpuLines returns a line for each GPU: its bar, all of one length, and what it measures.
func gpuLines(s *monitor.Snapshot, width int) []string {
	said := make([]string, len(s.GPUs))
	barWidth := width
	for i := range s.GPUs {
		said[i] = facts(&s.GPUs[i])
		barWidth = min(barWidth, width-len("GPU 00 [] ")-lipgloss.Width(said[i]))
	}
	var lines []string
	for i := range s.GPUs {
		g := &s.GPUs[i]
		lines = append(lines, fmt.Sprintf("GPU %-2d [%s] %s", g.Index, bar(s, g, max(minBar, barWidth)), said[i]))
	}
	return lines
}

// facts are what is said beside a bar.
func facts(g *monitor.GPU) string {
	if g.Error != "" {
		return "does not answer"
	}
	slices := string(g.Mode)
	if n := g.Slices; n != nil && n.Total != nil {
		slices = fmt.Sprintf("%d of %d slices free", g.Available(), *n.Total)
	}
	said := fmt.Sprintf("busy %s, %s", text.Scaled(g.GPUPercent, 1, "%"), slices)
	if g.Unhealthy != nil {
		said += ", unhealthy"
	}
	return said
}

// bar draws the memory of a GPU to scale.
func bar(s *monitor.Snapshot, g *monitor.GPU, width int) string {
	if g.MemoryBytes == nil || *g.MemoryBytes == 0 {
		return partProblem.style.Render(strings.Repeat(partProblem.mark, width))
	}
	amounts := amountsOf(s, g)
	rest := partFree
	if g.Unhealthy != nil {
		rest = partProblem
	}
	var b strings.Builder
	done, sum := 0, 0.0
	for _, a := range amounts {
		sum += a.bytes
		until := min(width, int(sum*float64(width)/float64(*g.MemoryBytes)+0.5))
		b.WriteString(a.style.Render(strings.Repeat(a.mark, max(0, until-done))))
		done = max(done, until)
	}
	b.WriteString(rest.style.Render(strings.Repeat(rest.mark, width-done)))
	return b.String()
}

// amount is how much of a bar a part has.
type amount struct {
	part
	bytes float64
}

func amountsOf(s *monitor.Snapshot, g *monitor.GPU) []amount {
	var used, dormant float64
	for _, c := range s.On(g.UUID) {
		switch {
		case c.State == claim.StateDormant:
			dormant += float64(c.LimitBytes)
		case c.Holds() && c.Usage != nil:
			used += float64(min(c.Usage.UsedBytes, c.LimitBytes))
		}
	}
	amounts := []amount{
		{partUsed, used}, {partReserved, max(0, float64(s.ReservedBytes(g.UUID))-used)}, {partDormant, dormant},
	}
	if g.OutsideBytes != nil {
		amounts = append(amounts, amount{partOutside, float64(*g.OutsideBytes)})
	}
	return amounts
}
