package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

func TestMedianOf(t *testing.T) {
	cases := []struct {
		name        string
		samples     []float64
		median, p99 float64
	}{
		{"one", []float64{7}, 7, 7},
		{"three out of order", []float64{3, 1, 2}, 2, 3},
		{"two hundred: the two slowest are left out", ascending(200), 101, 199},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			median, p99 := medianOf(c.samples)
			must.Eq(t, c.median, median)
			must.Eq(t, c.p99, p99)
		})
	}
}

// ascending is 1, 2, … n.
func ascending(n int) []float64 {
	all := make([]float64, n)
	for i := range all {
		all[i] = float64(i + 1)
	}
	return all
}

// shown are results of all kinds: with something bare beside them, with docker, and with nothing.
var shown = []result{
	{"launch", "bare", 1, 20, 30, "ns"},
	{"launch", "tranche", 1, 25.5, 40, "ns"},
	{"launch", "tranche", 8, 60, 70, "ns"},
	{"task-start", "tranche", 1, 100, 150, "ms"},
	{"task-start", "docker", 1, 250, 300, "ms"},
}

func TestCompared(t *testing.T) {
	want := []string{"", "+5.5", "", "40% of docker's", ""}
	for i, r := range shown {
		must.Eq(t, want[i], compared(r, shown), must.Sprint(r))
	}
	must.Eq(t, "", compared(shown[3], shown[:4]), must.Sprint("without Docker there is nothing to compare with"))
}

func TestShow(t *testing.T) {
	var out strings.Builder
	show(&out, shown)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	must.SliceLen(t, 3+len(shown), lines)
	must.Eq(t, []string{"task-start", "tranche", "1", "100.0", "150.0", "ms", "40%", "of", "docker's"},
		strings.Fields(lines[6]))
}

func TestWrite(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bench.tsv")
	must.NoError(t, write(file, shown[3:]))
	data, err := os.ReadFile(file)
	must.NoError(t, err)
	must.Eq(t, "benchmark\tvariant\tthreads\tmedian\tp99\tunit\n"+
		"task-start\ttranche\t1\t100.0\t150.0\tms\ntask-start\tdocker\t1\t250.0\t300.0\tms\n", string(data))
}

func TestChosen(t *testing.T) {
	names := func(parts []part) (names []string) {
		for _, p := range parts {
			names = append(names, p.name)
		}
		return names
	}
	all, err := chosen(partNames())
	must.NoError(t, err)
	must.Eq(t, []string{"calls", "containers", "tasks", "device", "agent", "packing", "shares"}, names(all))
	some, err := chosen([]string{"packing", "calls"})
	must.NoError(t, err)
	must.Eq(t, []string{"calls", "packing"}, names(some))
	for _, only := range []string{"", "devices"} {
		_, err := chosen([]string{"calls", only})
		must.ErrorContains(t, err, "there are calls, containers, tasks, device, agent, packing, shares", must.Sprint(only))
	}
}
