package claim

import (
	"encoding/hex"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// fuzzedRecord is a record with its token.
func fuzzedRecord() (*record, Token) {
	token := tokenOf(strings.Repeat("0f", tokenBytes))
	sum := token.hash()
	return &record{
		Format: recordFormat, TokenSHA256: hex.EncodeToString(sum[:]),
		Claim: Claim{
			ID: token.claimID(), GPU: GPU{UUID: "GPU-1"}, Slices: []string{"s0", "s1"}, LimitBytes: 1 << 30, Owner: OwnerNomad,
			Container: &Container{Runtime: "runc", ID: "c1", InitPID: 1, InitStartTime: 2, BootID: "b"},
		},
	}, token
}

// FuzzRecord reads a claim's file in the ledger. What is one, is the same when it has been written and read again; what is
// none can still be described.
func FuzzRecord(f *testing.F) {
	r, _ := fuzzedRecord()
	whole, err := encodeRecord(r)
	must.NoError(f, err)
	for _, seed := range [][]byte{
		whole, whole[:len(whole)/2], nil, []byte("{}"), []byte(`{"tranche_claim": 2}`), []byte(`{"slices": ["a\"b", "\ud800"`),
		replace(whole, `"s0"`, `"s0", "s0"`), replace(whole, `"limit_bytes": 1073741824`, `"limit_bytes": -1`),
	} {
		f.Add(seed)
	}
	id := r.ID
	f.Fuzz(func(t *testing.T, text []byte) {
		read, err := decodeRecord(id, text)
		if err != nil {
			held, complete := salvageSlices(text)
			must.NotEq(t, "", describeBroken(err, held, complete))
			return
		}
		must.Eq(t, id, read.ID)
		must.SliceNotEmpty(t, read.Slices)
		must.Positive(t, read.LimitBytes)
		_ = read.claim()
		again, err := encodeRecord(read)
		if err != nil { // a time that JSON cannot say
			return
		}
		second, err := decodeRecord(id, again)
		must.NoError(t, err)
		first, err := json.Marshal(read)
		must.NoError(t, err)
		other, err := json.Marshal(second)
		must.NoError(t, err)
		must.True(t, reflect.DeepEqual(first, other))
	})
}

// FuzzEnvironment looks a token up by an environment variable. One leads to a claim: the genuine one, under its own name.
func FuzzEnvironment(f *testing.F) {
	r, token := fuzzedRecord()
	for _, seed := range [][2]string{
		{token.EnvName(), token.Reveal()}, {token.EnvName(), strings.ToUpper(token.Reveal())}, {EnvPrefix, ""},
		{token.EnvName(), token.Reveal() + "\n"}, {strings.ToLower(token.EnvName()), token.Reveal()}, {EnvPrefix + "\x00", "\xff"},
		{token.EnvName(), strings.Repeat("0", 32)},
	} {
		f.Add(seed[0], seed[1])
	}
	snap := newSnapshot()
	snap.records[r.ID] = r
	f.Fuzz(func(t *testing.T, name, value string) {
		c, err := snap.byEnv(name, value)
		genuine := name == token.EnvName() && value == token.Reveal()
		must.Eq(t, genuine, err == nil)
		must.Eq(t, genuine, c != nil)
		if err != nil && len(value) >= 8 && !strings.Contains(name, value) {
			must.False(t, strings.Contains(err.Error(), value) && strings.Contains(token.Reveal(), value))
		}
	})
}
