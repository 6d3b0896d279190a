package mig

import (
	"slices"
	"testing"

	"github.com/shoenig/test/must"
)

// The names are NVIDIA's, to the rounding.
func TestModelOf(t *testing.T) {
	for product, tc := range map[string]struct {
		mebibytes uint64
		want      []string
	}{
		"NVIDIA A30":            {24576, []string{"1g.6gb", "1g.6gb+me", "2g.12gb", "2g.12gb+me", "4g.24gb"}},
		"A100-PCIE-40GB":        {40536, []string{"1g.10gb", "1g.5gb", "1g.5gb+me", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"}},
		"NVIDIA A100 80GB PCIe": {81920, []string{"1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"}},
		"NVIDIA H100 80GB HBM3": {81559, []string{"1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"}},
		"NVIDIA H200":           {143771, []string{"1g.18gb", "1g.18gb+me", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"}},
		"NVIDIA B200":           {183359, []string{"1g.23gb", "1g.23gb+me", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"}},
	} {
		model, ok := ModelOf(product, tc.mebibytes<<20)
		must.True(t, ok, must.Sprint(product))
		var names []string
		for _, p := range model.Profiles {
			names = append(names, p.Name)
			must.Len(t, p.Max, p.Places[:p.Max])
		}
		slices.Sort(names)
		must.Eq(t, tc.want, names)
		must.Less(t, tc.mebibytes<<20, model.LargestBytes)
	}
	for _, product := range []string{"Tesla T4", "NVIDIA A100X", "NVIDIA GH200 480GB", "NVIDIA H100 NVL", ""} {
		_, ok := ModelOf(product, 95830<<20)
		must.False(t, ok, must.Sprint(product))
	}
}
