package proc

import (
	"strconv"
	"strings"
)

// Cgroups returns the cgroups of a process, by the ID of their hierarchy, which is 0 for cgroup v2 (cgroups(7)).
// With procfs a snapshot of 100 claims takes a quarter more processor time (BenchmarkSnapshot in agent/monitor).
func Cgroups(pid int) (map[int]string, error) {
	text, err := readProc("/proc/" + strconv.Itoa(pid) + "/cgroup")
	return parseCgroups(string(text)), err
}

// parseCgroups parses lines of hierarchy, controllers and path. The path may have any character but the end of a line.
func parseCgroups(text string) map[int]string {
	groups := make(map[int]string)
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if hierarchy, err := strconv.Atoi(fields[0]); err == nil && len(fields) == 3 {
			groups[hierarchy] = fields[2]
		}
	}
	return groups
}
