package mps

import (
	"testing"

	"github.com/shoenig/test/must"
)

func TestPercentage(t *testing.T) {
	for _, tc := range []struct{ count, slices, want int }{
		{1, 140, 1}, {2, 140, 2}, {70, 140, 50}, {71, 140, 51}, {140, 140, 100}, {1, 3, 34}, {1, 1, 100}, {3, 3, 100}, {1, 1000, 1},
	} {
		must.Eq(t, tc.want, percentage(tc.count, tc.slices), must.Sprintf("%d of %d", tc.count, tc.slices))
	}
}
