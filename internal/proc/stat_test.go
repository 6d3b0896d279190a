package proc

import (
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

func TestParseStat(t *testing.T) {
	after := "S 7 7 7 0 -1 4194304 90 0 0 0 1 2 0 0 20 0 3 0 4242 1000 50 18446744073709551615 1 1"
	for _, name := range []string{"sh", "a b", "x) Z 1 (y", ")", "\n"} {
		s, err := parseStat([]byte("12 (" + name + ") " + after + "\n"))
		must.NoError(t, err)
		must.Eq(t, stat{state: "S", parent: 7, threads: 3, startTime: 4242}, s, must.Sprintf("a program named %q", name))
	}
}

func TestParseStat_Broken(t *testing.T) {
	whole := strings.Fields("12 (sh) S 7 7 7 0 -1 4194304 90 0 0 0 1 2 0 0 20 0 3 0 4242")
	for _, broken := range []int{3, 19, 21} { // parent, threads, start time
		fields := append([]string(nil), whole...)
		fields[broken] = "x"
		_, err := parseStat([]byte(strings.Join(fields, " ")))
		must.Error(t, err, must.Sprintf("field %d is no number", broken))
	}
	for _, text := range []string{"", "12 (sh)", strings.Join(whole[:21], " ")} {
		_, err := parseStat([]byte(text))
		must.ErrorContains(t, err, "fields after the program's name")
	}
}
