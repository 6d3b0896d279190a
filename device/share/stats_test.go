package share

import (
	"testing"

	"github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
)

func TestClaimUsage_PartsAddUp(t *testing.T) {
	for _, count := range []int{1, 2, 3, 7, 140} {
		use := &ClaimUsage{Claim: &claim.Claim{}}
		for number := range count {
			use.Slices = append(use.Slices, claim.SliceName("GPU-0", number))
		}
		memory := Mebibytes(1_000_003<<20, 2_000_003<<20, "")
		var used, limit int64
		for _, id := range use.Slices {
			part := use.Part(id, memory)
			used, limit = used+*part.IntNumeratorVal, limit+*part.IntDenominatorVal
			must.Between(t, 1_000_003/int64(count), *part.IntNumeratorVal, 1_000_003/int64(count)+1)
		}
		must.Eq(t, 1_000_003, used)
		must.Eq(t, 2_000_003, limit)
	}
	text := "N/A"
	unknown := &structs.StatValue{StringVal: &text}
	use := &ClaimUsage{Claim: &claim.Claim{Slices: []string{"a", "b"}}}
	must.Eq(t, unknown, use.Part("b", unknown))
}
