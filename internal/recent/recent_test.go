package recent

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestValue(t *testing.T) {
	var v Value[int]
	taken := 0
	take := func() (int, error) { taken++; return taken, errors.New("again") }
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			value, err := v.Get(time.Hour, take)
			must.Eq(t, 1, value)
			must.ErrorContains(t, err, "again")
		})
	}
	all.Wait()
	value, _ := v.Get(-1, take)
	must.Eq(t, 2, value)
	v.Drop()
	value, _ = v.Get(time.Hour, take)
	must.Eq(t, 3, value)
}
