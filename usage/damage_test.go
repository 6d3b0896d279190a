package usage

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// damages are what may happen to the last segment of a journal.
var damages = map[string]func(random *rand.Rand, segment string, bytes int64) error{
	"cut off": func(random *rand.Rand, segment string, bytes int64) error {
		return os.Truncate(segment, random.Int64N(bytes+1))
	},
	"zeros at its end": func(random *rand.Rand, segment string, bytes int64) error {
		return os.Truncate(segment, bytes+random.Int64N(1<<21))
	},
	"a flipped bit": func(random *rand.Rand, segment string, bytes int64) error {
		text, err := os.ReadFile(segment)
		if err != nil || bytes == 0 {
			return err
		}
		text[random.Int64N(bytes)] ^= 1 << random.IntN(8)
		return os.WriteFile(segment, text, 0o600)
	},
	"a directory": func(_ *rand.Rand, segment string, _ int64) error {
		if err := os.Remove(segment); err != nil {
			return err
		}
		return os.Mkdir(segment, 0o700)
	},
	"another's": func(_ *rand.Rand, segment string, _ int64) error {
		return os.Chown(filepath.Dir(segment), 65534, 65534)
	},
	"gone":                   func(_ *rand.Rand, segment string, _ int64) error { return os.Remove(segment) },
	"gone with all segments": func(_ *rand.Rand, segment string, _ int64) error { return os.RemoveAll(filepath.Dir(segment)) },
}

// damage damages the last segment, if there is one.
func (n *node) damage(t *testing.T, random *rand.Rand, how func(*rand.Rand, string, int64) error) {
	t.Helper()
	segments, err := filepath.Glob(filepath.Join(n.ledger.Journal().Dir(), "*.log"))
	must.NoError(t, err)
	if len(segments) == 0 {
		return
	}
	last := segments[len(segments)-1]
	info, err := os.Lstat(last)
	must.NoError(t, err)
	if info.Mode().IsRegular() {
		must.NoError(t, how(random, last, info.Size()))
	}
}

// Whatever happens to the journal, claims come and go, each collection succeeds, and a claim that lives on is accounted exactly.
func TestCollect_DamagedJournal(t *testing.T) {
	for name, how := range damages {
		t.Run(name, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			random := rand.New(rand.NewPCG(seed, 1))
			n := newNode(t)
			n.collect(t)
			began := time.Now()
			end := n.witness(t, "GPU-a")
			n.collect(t)
			for range 12 {
				for range random.IntN(4) {
					must.NoError(t, churn(t.Context(), n.ledger, random, "GPU-a"))
				}
				if random.IntN(2) == 0 {
					n.collect(t)
				}
				n.damage(t, random, how)
			}
			id, millis := end()
			n.damage(t, random, how)
			n.collect(t)
			n.endAll(t)
			most := time.Since(began).Milliseconds()
			n.collect(t)
			_, claims := n.store.rows(t)
			must.Eq(t, millis, claims[id])
			n.checkSlices(t, most)
			if strings.HasPrefix(name, "gone") || name == "a directory" { // others may have damaged nothing that was still needed
				must.SliceNotEmpty(t, n.store.gaps(t))
			}
		})
	}
}

// A journal that was cut off within what is accounted says nothing new: its events do not bring back a claim that is gone.
func TestCollect_CutOffJournal(t *testing.T) {
	n := newNode(t)
	c, _, err := n.ledger.Reserve(t.Context(), request("GPU-a", 0, 1))
	must.NoError(t, err)
	opened, err := n.ledger.Journal().End()
	must.NoError(t, err)
	eventually(t, "some time has passed", func() bool { return time.Since(c.Created) > 5*time.Millisecond })
	must.NoError(t, n.ledger.Drop(t.Context(), c.ID))
	n.collect(t)
	must.NoError(t, os.Truncate(filepath.Join(n.ledger.Journal().Dir(), "0000000001.log"), opened.Offset))
	n.collect(t)
	must.Len(t, 1, n.store.gaps(t))
	must.StrHasPrefix(t, "parts of the journal of claims were removed", n.store.gaps(t)[0])
}

// A claim whose record is away for a while continues where it ended: what was accounted of it does not count again.
func TestCollect_RecordThatComesBack(t *testing.T) {
	onBoth(t, func(t *testing.T, n *node) {
		end := n.witness(t, "GPU-a")
		n.collect(t)
		records, err := filepath.Glob(filepath.Join(n.state, "claims/*.json"))
		must.NoError(t, err)
		must.Len(t, 1, records)
		must.NoError(t, os.Rename(records[0], n.state+"-away"))
		n.collect(t)
		n.collect(t)
		must.NoError(t, os.Rename(n.state+"-away", records[0]))
		n.collect(t)
		id, millis := end()
		n.collect(t)
		_, claims := n.store.rows(t)
		must.Eq(t, millis, claims[id])
	})
}

// A file in the place of the journal has to be removed, which the error says, and then all is accounted.
func TestCollect_FileInPlaceOfTheJournal(t *testing.T) {
	n := newNode(t)
	n.collect(t)
	end := n.witness(t, "GPU-a")
	n.collect(t)
	dir := n.ledger.Journal().Dir()
	must.NoError(t, os.RemoveAll(dir))
	must.NoError(t, os.WriteFile(dir, nil, 0o600))
	id, millis := end()
	_, err := n.store.Collect(t.Context(), n.ledger, testGPUs, nil)
	must.ErrorContains(t, err, dir+" has to be a directory, and all above it: remove what is in the way")
	must.NoError(t, os.Remove(dir))
	n.collect(t)
	_, claims := n.store.rows(t)
	must.Eq(t, millis, claims[id])
	must.Len(t, 1, n.store.gaps(t))
}
