package top

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"charm.land/bubbles/v2/table"
	"charm.land/bubbles/v2/textinput"
	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/tranche-gpu/tranche/agent/monitor"
)

// model is what the terminal shows.
type model struct {
	Options
	ctx      context.Context
	snapshot *monitor.Snapshot
	paused   bool
	// typing is whether keys go into the filter.
	typing        bool
	filter        textinput.Model
	table         table.Model
	width, height int
	// hidden is how many dormant claims are.
	hidden int
}

// tookMsg has a new snapshot, and tickMsg requests one.
type (
	tookMsg struct{ *monitor.Snapshot }
	tickMsg struct{}
)

func newModel(ctx context.Context, o Options) *model {
	m := &model{Options: o, ctx: ctx, filter: textinput.New(), width: 80, height: 24}
	m.filter.Prompt = "filter: "
	m.filter.SetValue(o.Filter)
	styles := table.DefaultStyles()
	styles.Header = lipgloss.NewStyle().Bold(true).PaddingRight(1)
	styles.Cell = lipgloss.NewStyle().PaddingRight(1)
	styles.Selected = lipgloss.NewStyle().Reverse(true)
	m.table = table.New(table.WithFocused(true), table.WithStyles(styles))
	m.table.KeyMap.PageDown.SetKeys("pgdown") // the space bar pauses
	return m
}

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return m.take }

// take takes a snapshot.
func (m *model) take() tea.Msg { return tookMsg{m.Snapshot(m.ctx)} }

// Update implements tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	var cmd tea.Cmd
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tookMsg:
		if !m.paused || m.snapshot == nil {
			m.snapshot = msg.Snapshot
		}
		cmd = tea.Tick(m.Interval, func(time.Time) tea.Msg { return tickMsg{} })
	case tickMsg:
		cmd = m.take
	case tea.KeyPressMsg:
		cmd = m.key(msg)
	default:
		if m.typing { // the cursor of the filter blinks
			m.filter, cmd = m.filter.Update(msg)
		}
	}
	m.fill()
	return m, cmd
}

// key reacts to a key.
func (m *model) key(msg tea.KeyPressMsg) (cmd tea.Cmd) {
	if msg.String() == "ctrl+c" {
		return tea.Quit
	}
	if m.typing {
		switch msg.String() {
		case "esc":
			m.filter.SetValue("")
			fallthrough
		case "enter":
			m.typing = false
			m.filter.Blur()
			return nil
		}
		m.filter, cmd = m.filter.Update(msg)
		return cmd
	}
	switch msg.String() {
	case "q":
		return tea.Quit
	case "s":
		m.Sort = orders[(m.order()+1)%len(orders)].name
	case "S":
		m.Sort = orders[(m.order()+len(orders)-1)%len(orders)].name
	case "space":
		m.paused = !m.paused
	case "d":
		m.Dormant = !m.Dormant
	case "/":
		m.typing = true
		return m.filter.Focus()
	case "esc":
		m.filter.SetValue("")
	default:
		m.table, cmd = m.table.Update(msg)
	}
	return cmd
}

// fill fills the table for the size of the window.
func (m *model) fill() {
	if m.snapshot == nil {
		return
	}
	wide := m.width
	m.Filter = m.filter.Value()
	claims, hidden := m.selected(m.snapshot)
	m.hidden = hidden
	titles, cells := shown(m.snapshot, claims, m.width)
	var columns []table.Column
	for _, c := range titles {
		wide -= c.width + 1
	}
	for _, c := range titles {
		width := c.width
		if width == 0 {
			width = max(wide, 10)
		}
		columns = append(columns, table.Column{Title: c.title, Width: width})
	}
	var rows []table.Row
	for _, row := range cells {
		rows = append(rows, row)
	}
	if !slices.Equal(columns, m.table.Columns()) {
		m.table.SetRows(nil) // it draws the rows that it has when its columns change, and is at the top afterwards
		m.table.SetColumns(columns)
	}
	m.table.SetRows(rows)
	if m.table.Cursor() < 0 { // it had no rows
		m.table.SetCursor(0)
	}
	m.table.SetWidth(m.width)
	m.table.SetHeight(max(3, m.height-len(m.head())-2))
}

// head are the lines above the table.
func (m *model) head() []string {
	more := "  by " + m.Sort
	if m.paused {
		more += "  PAUSED"
	}
	lines := append([]string{title(m.snapshot, m.Node, more)}, problems(m.snapshot)...)
	lines = append(lines, gpuLines(m.snapshot, m.width)...)
	return append(lines, legend(), "")
}

// View implements tea.Model.
func (m *model) View() tea.View {
	content := "tranche top: reading the GPUs …"
	if m.snapshot != nil {
		foot := "q quit  s sort  / filter  d dormant  space pause  ↑↓ scroll"
		if m.hidden > 0 {
			foot += fmt.Sprintf("  (%s hidden)", hiddenClaims(m.hidden))
		}
		if m.typing || m.filter.Value() != "" {
			foot = m.filter.View()
		}
		lines := append(m.head(), strings.Split(m.table.View(), "\n")...)
		lines = append(lines[:min(len(lines), max(1, m.height-1))], foot)
		for i := range lines {
			lines[i] = ansi.Truncate(lines[i], m.width, "…")
		}
		content = strings.Join(lines, "\n")
	}
	view := tea.NewView(content)
	view.AltScreen, view.WindowTitle = true, "tranche top"
	return view
}
