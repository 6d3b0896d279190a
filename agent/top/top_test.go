package top

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/agent/agenttest"
	"github.com/tranche-gpu/tranche/agent/monitor"
)

func options() Options {
	return Options{
		Snapshot: func(context.Context) *monitor.Snapshot { return agenttest.Snapshot() },
		Node:     "node-1 " + agenttest.Hostile, Interval: time.Hour, Sort: "gpu",
	}
}

// TestOnce_Golden prints a node on which everything occurs. No name of others may add a line or control the terminal.
func TestOnce_Golden(t *testing.T) {
	var out bytes.Buffer
	must.NoError(t, Once(t.Context(), options(), &out))
	if os.Getenv("TRANCHE_UPDATE_GOLDEN") != "" {
		must.NoError(t, os.MkdirAll("testdata", 0o755))
		must.NoError(t, os.WriteFile("testdata/once.txt", out.Bytes(), 0o644))
	}
	want, err := os.ReadFile("testdata/once.txt")
	must.NoError(t, err)
	must.Eq(t, string(want), out.String(), must.Sprint("set TRANCHE_UPDATE_GOLDEN=1 to write it"))
	must.StrNotContains(t, out.String(), "\x1b")
}

func TestJSON_UnknownIsNull(t *testing.T) {
	var out bytes.Buffer
	must.NoError(t, JSON(t.Context(), options(), true, &out))
	must.Eq(t, 1, strings.Count(out.String(), "\n"))
	var all map[string][]map[string]any
	var rest struct{ GPUs, Claims json.RawMessage }
	must.NoError(t, json.Unmarshal(out.Bytes(), &rest))
	all = map[string][]map[string]any{}
	for name, text := range map[string]json.RawMessage{"gpus": rest.GPUs, "claims": rest.Claims} {
		var list []map[string]any
		must.NoError(t, json.Unmarshal(text, &list))
		all[name] = list
	}
	unanswered, unread, known := all["gpus"][2], all["claims"][1], all["claims"][0]
	for _, name := range []string{"memory_bytes", "used_bytes", "outside_bytes", "utilization_ratio", "temperature_celsius", "power_watts"} {
		must.MapContainsKey(t, unanswered, name)
		must.Nil(t, unanswered[name])
	}
	for _, name := range []string{"used_bytes", "peak_bytes", "refused", "processes", "utilization_ratio", "uncounted_bytes", "compute", "turns"} {
		must.MapContainsKey(t, unread, name)
		must.Nil(t, unread[name])
		must.NotNil(t, known[name])
	}
	must.Eq[any](t, 0.37, all["gpus"][0]["utilization_ratio"])
}

// Numbers have no digits that nothing measured.
func TestJSON_Rounded(t *testing.T) {
	s := agenttest.Snapshot()
	ratio, percent, milliwatts := 0.1+0.2, int64(57), int64(350_006)
	s.Claims[0].Utilization, s.GPUs[0].GPUPercent, s.GPUs[0].PowerMilliwatts = &ratio, &percent, &milliwatts
	o := options()
	o.Snapshot = func(context.Context) *monitor.Snapshot { return s }
	var out bytes.Buffer
	must.NoError(t, JSON(t.Context(), o, true, &out))
	for _, want := range []string{`"utilization_ratio":0.3,`, `"utilization_ratio":0.57,`, `"power_watts":350.006,`} {
		must.StrContains(t, out.String(), want)
	}
}

func TestOptions_ErrorsNameTheOption(t *testing.T) {
	for _, c := range []struct {
		change func(*Options)
		want   string
	}{
		{func(o *Options) { o.Sort = "color" }, `--sort: "color" is no order; there are gpu, unused, used`},
		{func(o *Options) { o.Interval = time.Millisecond }, "--interval must be at least 500ms, got 1ms"},
	} {
		o := options()
		c.change(&o)
		for _, run := range []func() error{
			func() error { return Once(t.Context(), o, new(bytes.Buffer)) },
			func() error { return JSON(t.Context(), o, true, new(bytes.Buffer)) },
			func() error { return Run(t.Context(), o, nil, new(bytes.Buffer), nil) },
		} {
			must.ErrorContains(t, run(), c.want)
		}
	}
	must.ErrorContains(t, Run(t.Context(), options(), nil, new(bytes.Buffer), nil), "print the state with --once")
}

func TestSelected_SortsAndFilters(t *testing.T) {
	ids := func(by, filter string) string {
		o := options()
		o.Sort = by
		o.Filter = filter
		var all []string
		claims, hidden := o.selected(agenttest.Snapshot())
		for _, c := range claims {
			all = append(all, c.ID[:1])
		}
		must.Eq(t, filter == "", hidden == 1, must.Sprint("dormant claims are hidden unless a filter may name them"))
		return strings.Join(all, "")
	}
	must.Eq(t, "abce", ids("gpu", ""))
	must.Eq(t, "eabc", ids("limit", ""))
	must.Eq(t, "abce", ids("busy", "")) // of the others it is unknown
	must.Eq(t, "bace", ids("unused", ""))
	must.Eq(t, "a", ids("gpu", "TRAIN"))
	must.Eq(t, "d", ids("gpu", "dormant"))
	must.Eq(t, "", ids("gpu", "no such thing"))
}

// screen is a model as a terminal of 100 columns and 30 rows shows it.
type screen struct{ tea.Model }

func newScreen(t *testing.T) *screen {
	m := newModel(t.Context(), options())
	s := &screen{m}
	s.send(tea.WindowSizeMsg{Width: 100, Height: 30}, m.take())
	return s
}

func (s *screen) send(messages ...tea.Msg) {
	for _, msg := range messages {
		s.Model, _ = s.Update(msg)
	}
}

func (s *screen) keys(text string) {
	for _, r := range text {
		key := tea.KeyPressMsg{Code: r, Text: string(r)}
		if r == '\x1b' || r == '\r' {
			key.Text = ""
		}
		s.send(key)
	}
}

func (s *screen) text() string { return ansi.Strip(s.View().Content) }

func TestModel_Keys(t *testing.T) {
	s := newScreen(t)
	must.StrContains(t, s.text(), "by gpu")
	s.keys("ss")
	must.StrContains(t, s.text(), "by used")
	s.keys("SSS")
	must.StrContains(t, s.text(), "by name")
	must.StrNotContains(t, s.text(), "dddddddd")
	must.StrContains(t, s.text(), "1 dormant claim is hidden")
	s.keys("d")
	must.StrContains(t, s.text(), "dddddddd")
	s.keys("d")
	s.keys("/TRAINq s")
	must.StrContains(t, s.text(), "filter: TRAINq s") // no key is an order meanwhile
	must.StrNotContains(t, s.text(), "aaaaaaaa")
	s.keys("\x1b")
	must.StrContains(t, s.text(), "aaaaaaaa")
	s.keys("/train\r")
	must.StrContains(t, s.text(), "aaaaaaaa")
	must.StrNotContains(t, s.text(), "bbbbbbbb")
	s.keys("\x1b")
	must.StrContains(t, s.text(), "bbbbbbbb")
}

func TestModel_PausedStaysAsItIs(t *testing.T) {
	s := newScreen(t)
	none := agenttest.Snapshot()
	none.Claims = nil
	s.keys(" ")
	s.send(tookMsg{none})
	must.StrContains(t, s.text(), "PAUSED")
	must.StrContains(t, s.text(), "aaaaaaaa")
	s.keys(" ")
	s.send(tookMsg{none})
	must.StrNotContains(t, s.text(), "PAUSED")
	must.StrNotContains(t, s.text(), "aaaaaaaa")
}

// TestShown_Shares has a column of shares only where a claim is governed and there is room.
func TestShown_Shares(t *testing.T) {
	s := agenttest.Snapshot()
	claims := s.Claims
	for _, c := range []struct {
		claims []*monitor.Claim
		width  int
		want   bool
	}{{claims, shareFrom, true}, {claims, shareFrom - 1, false}, {claims[1:4], shareFrom, false}, {nil, shareFrom, false}} {
		titles, rows := shown(s, c.claims, c.width)
		must.Eq(t, c.want, slices.Contains(titles, column{shareTitle, 12, shareFrom}))
		for _, row := range rows {
			must.Len(t, len(titles), row)
		}
	}
	must.Eq(t, "30%/31%!", share(claims[0]))
	must.Eq(t, "-", share(claims[1]))
	must.Eq(t, "33.3%/-", share(claims[4])) // no governor says what it has had
	claims[0].Turns.Alone, claims[0].Turns.NotJoined = true, nil
	must.Eq(t, "30%/alone", share(claims[0])) // nothing is counted then
}

// TestModel_Scrolls keeps the selected claim in sight, also when a new snapshot comes.
func TestModel_Scrolls(t *testing.T) {
	many := agenttest.Snapshot()
	for i := range 30 {
		c := *many.Claims[0]
		copied := *c.Claim
		c.Claim = &copied
		c.ID = fmt.Sprintf("%08x", i)
		many.Claims = append(many.Claims, &c)
	}
	many.Claims = many.Claims[5:]
	s := newScreen(t)
	s.send(tookMsg{many})
	s.send(tea.WindowSizeMsg{Width: 100, Height: 16})
	for range 12 {
		s.send(tea.KeyPressMsg{Code: tea.KeyDown}, tookMsg{many})
	}
	must.StrContains(t, s.text(), "0000000c")
	must.StrNotContains(t, s.text(), "00000000")
	s.keys("/nothing\r")
	must.StrNotContains(t, s.text(), "0000000c")
	s.keys("\x1b")
	must.StrContains(t, s.text(), "00000000")
}

func TestModel_FitsTheWindow(t *testing.T) {
	s := newScreen(t)
	for _, size := range []tea.WindowSizeMsg{{Width: 200, Height: 60}, {Width: 80, Height: 24}, {Width: 40, Height: 10}, {Width: 10, Height: 3}, {Width: 1, Height: 1}} {
		s.send(size)
		lines := strings.Split(s.View().Content, "\n")
		must.LessEq(t, max(2, size.Height), len(lines), must.Sprint(size))
		for _, line := range lines {
			must.LessEq(t, size.Width, ansi.StringWidth(line), must.Sprint(size))
			must.StrNotContains(t, ansi.Strip(line), "\x1b")
		}
	}
}
