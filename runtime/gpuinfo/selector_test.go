package gpuinfo

import (
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

func TestSelector(t *testing.T) {
	gpus := []GPU{
		{Index: 0, UUID: "GPU-00000000-1111-2222-3333-444444444444", Name: "NVIDIA H200", PCIBusID: "00000000:18:00.0"},
		{Index: 1, UUID: "GPU-11111111-1111-2222-3333-444444444444", Name: "NVIDIA H200 NVL", PCIBusID: "00000000:3B:00.0"},
		{Index: 2, UUID: "GPU-22222222-1111-2222-3333-444444444444", Name: "Quadro RTX 6000/8000", PCIBusID: "00000001:3B:00.1"},
		{Index: 10, UUID: "MIG-aaaaaaaa-1111-2222-3333-444444444444", Name: "NVIDIA A100 MIG 1g.5gb", MIGParent: "GPU-x"},
	}
	for text, want := range map[string][]int{
		"0":         {0},
		"1":         {1},
		" index:2 ": {2},
		"index:02":  {2},
		"index: 2":  {2},
		"10":        nil, // an instance has no index of its own
		"GPU-00000000-1111-2222-3333-444444444444":      {0},
		"uuid:GPU-22222222-1111-2222-3333-444444444444": {2},
		"MIG-aaaaaaaa-1111-2222-3333-444444444444":      {10},
		"GPU-0":                      nil,
		"pci:00000000:3b:00.0":       {1},
		"pci:0000:3B:00.0":           {1},
		"pci:3b:00.0":                {1},
		"pci:1:3b:0.1":               {2},
		"pci:0000:3b:00.1":           nil,
		"model:NVIDIA H200":          {0},
		"model:nvidia h200*":         {0, 1},
		"model:*rtx*":                {2},
		"model:Quadro RTX 6000/8000": {2},
		"model:Quadro*8000":          {2},
		"model:NVIDIA [AH]?00*":      {0, 1, 10},
		"model:T4":                   nil,
	} {
		s, err := ParseSelector(text)
		must.NoError(t, err, must.Sprint(text))
		var got []int
		for _, g := range gpus {
			if s.Matches(g) {
				got = append(got, g.Index)
			}
		}
		must.Eq(t, want, got, must.Sprint(text))
		again, err := ParseSelector(s.String())
		must.NoError(t, err)
		must.Eq(t, s, again)
	}
	for _, g := range gpus {
		must.True(t, Selector{}.Matches(g))
	}
	must.Eq(t, "any GPU", Selector{}.String())
}

func TestParseSelector_Refuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                   "names no GPU",
		"  ":                 "names no GPU",
		"index:":             "names no GPU",
		"gpu:0":              `"gpu:0" names no GPU: it has to be "index:0", "uuid:GPU-…"`,
		"-1":                 "is no index",
		"+1":                 "is no index",
		"0,1":                "is no index",
		"all":                "is no index",
		"index:0x1":          "is no index",
		"70000":              "is no index",
		"pci:zz:00.0":        "no PCI address such as 0000:3b:00.0",
		"pci:0000:3b:00":     "no PCI address",
		"pci:3b":             "no PCI address",
		"pci:0:0:3b:00.0":    "no PCI address",
		"pci:0000:3b:20.0":   "no PCI address", // 32 devices a bus
		"pci:0000:3b:00.8":   "no PCI address",
		"pci:0000:3b:00.-1":  "no PCI address",
		"model:NVIDIA [H200": "no pattern for the name of a GPU",
	} {
		_, err := ParseSelector(text)
		must.ErrorContains(t, err, want, must.Sprint(text))
	}
}

func FuzzParseSelector(f *testing.F) {
	for _, text := range []string{"0", "index:1", "uuid:GPU-1", "pci:0000:3b:00.0", "pci:3b:0.0", "model:NVIDIA H200*", "model:[", "::"} {
		f.Add(text)
	}
	gpu := GPU{UUID: "GPU-1", Name: "NVIDIA H200", PCIBusID: "00000000:18:00.0"}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSelector(text)
		if err != nil {
			must.Eq(t, Selector{}, s)
			return
		}
		must.NotEq(t, Selector{}, s, must.Sprint("whoever names a GPU does not get any"))
		s.Matches(gpu)
		if strings.TrimSpace(s.value) == s.value {
			again, err := ParseSelector(s.String())
			must.NoError(t, err)
			must.Eq(t, s, again)
		}
	})
}
