package claim

import (
	"context"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
)

// Lookup returns the claim of a claim token, or ErrUnknownToken.
func (l *Ledger) Lookup(ctx context.Context, t Token) (*Claim, error) {
	var found *Claim
	err := l.read(ctx, func(snap *snapshot) (err error) {
		found, err = snap.byToken(t)
		return err
	})
	return found, err
}

// FromEnv returns the claims whose tokens are in an environment, ordered by GPU; none if there are no tokens. One invalid
// entry makes the whole an error: a container that was to get two GPUs must not start with one.
func (l *Ledger) FromEnv(ctx context.Context, env map[string]string) ([]*Claim, error) {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if IsTokenVariable(name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	var found []*Claim
	err := l.read(ctx, func(snap *snapshot) error {
		for _, name := range names {
			c, err := snap.byEnv(name, env[name])
			if err != nil {
				return err
			}
			found = append(found, c)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(found, compareClaims)
	return found, nil
}

func (snap *snapshot) byEnv(name, value string) (*Claim, error) {
	t, err := ParseToken(value)
	if err != nil {
		return nil, fmt.Errorf("environment variable %s holds no claim token: only Tranche sets variables that begin "+
			"with %s, so remove it from the job", name, EnvPrefix)
	}
	if name != t.EnvName() {
		return nil, fmt.Errorf("environment variable %s holds the claim token of another claim than its name says: "+
			"only Tranche sets variables that begin with %s, so remove it from the job", name, EnvPrefix)
	}
	c, err := snap.byToken(t)
	if err != nil {
		return nil, fmt.Errorf("environment variable %s: %w", name, err)
	}
	return c, nil
}

func (snap *snapshot) byToken(t Token) (*Claim, error) {
	r, ok := snap.records[t.claimID()]
	if !ok {
		return nil, ErrUnknownToken
	}
	// The ID is only part of the hash, so the rest has to fit too.
	want, err := hex.DecodeString(r.TokenSHA256)
	if sum := t.hash(); err != nil || subtle.ConstantTimeCompare(sum[:], want) != 1 {
		return nil, ErrUnknownToken
	}
	return r.claim(), nil
}
