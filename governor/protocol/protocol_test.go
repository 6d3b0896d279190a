package protocol

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/governor/page"
)

const intercept = "../../intercept"

// The C program writes messages and a page; ours are the same, byte for byte.
func TestSameInC(t *testing.T) {
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "gcc"
	}
	program := filepath.Join(t.TempDir(), "messages")
	out, err := exec.Command(cc, "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-I", intercept, "-o", program,
		"testdata/messages.c").CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	written, err := exec.Command(program).Output()
	must.NoError(t, err)

	for kind := Hello; kind <= Refused; kind++ {
		size := Size
		if kind == Hello {
			size += 2 * UUIDSize
		}
		packet := written[:size]
		written = written[size:]
		m, uuids, err := Decode(packet)
		must.NoError(t, err)
		must.Eq(t, kind, m.Kind)
		must.Eq(t, Message{
			Version: Version, Kind: kind, GPU: 2, Turn: 1<<40 + 1, Flags: 1<<40 + 2, Value: [5]uint64{3, 4, 5, 6, 1<<40 + 7},
		}, m)
		must.Eq(t, string(packet[:Size]), string(m.Encode()))
		if kind == Hello {
			must.Eq(t, []string{"GPU-a", strings.Repeat("x", UUIDSize)}, uuids)
		}
	}

	p, err := page.New()
	must.NoError(t, err)
	defer p.Close()
	p.Beat(1<<40 + 1)
	for gpu := range MaxGPUs {
		n := uint64(gpu)
		p.Set(gpu, page.GPU{State: uint32(gpu % 3), Turn: n + 10, MeterNS: n + 20, TurnEndNS: n + 30, SwitchNS: n + 40})
	}
	must.Eq(t, string(written), string(p.Bytes()))
}

func TestDecode_Refuses(t *testing.T) {
	hello := Message{Kind: Hello, GPU: 1}.Encode()
	for name, packet := range map[string][]byte{
		"empty": {}, "short": hello[:Size-1], "no UUID": hello, "half a UUID": append(hello, make([]byte, UUIDSize/2)...),
		"too many GPUs": append(Message{Kind: Hello, GPU: MaxGPUs + 1}.Encode(), make([]byte, (MaxGPUs+1)*UUIDSize)...),
		"longer":        append(Message{Kind: Want}.Encode(), 0),
		"version":       append([]byte{2}, hello[1:]...),
	} {
		_, _, err := Decode(packet)
		must.Error(t, err, must.Sprint(name))
	}
}
