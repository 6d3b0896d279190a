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
	if !HasTokens(env) {
		return nil, nil
	}
	var found []*Claim
	err := l.read(ctx, func(snap *snapshot) (err error) {
		found, err = snap.fromEnv(env)
		return err
	})
	return found, err
}

// tokenVariables returns the names of the variables for claim tokens in an environment.
func tokenVariables(env map[string]string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(env)), func(name string) bool { return !IsTokenVariable(name) })
}

// fromEnv returns the claims of an environment's tokens.
func (snap *snapshot) fromEnv(env map[string]string) ([]*Claim, error) {
	var found []*Claim
	for _, name := range tokenVariables(env) {
		c, err := snap.byEnv(name, env[name])
		if err != nil {
			return nil, err
		}
		found = append(found, c)
	}
	slices.SortFunc(found, compareClaims)
	return found, nil
}

func (snap *snapshot) byEnv(name, value string) (*Claim, error) {
	t, err := checkEnv(name, value)
	if err != nil {
		return nil, err
	}
	c, err := snap.byToken(t)
	if err != nil {
		return nil, fmt.Errorf("environment variable %s: %w", name, err)
	}
	return c, nil
}

// checkEnv returns the token in an environment variable.
func checkEnv(name, value string) (Token, error) {
	t, err := ParseToken(value)
	if err != nil {
		return Token{}, fmt.Errorf("environment variable %s holds no claim token: only Tranche sets variables that begin "+
			"with %s, so remove it from the job", name, EnvPrefix)
	}
	if name != t.EnvName() {
		return Token{}, fmt.Errorf("environment variable %s holds the claim token of another claim than its name says: "+
			"only Tranche sets variables that begin with %s, so remove it from the job", name, EnvPrefix)
	}
	return t, nil
}

func (snap *snapshot) byToken(t Token) (*Claim, error) {
	r, ok := snap.records[t.claimID()]
	if !ok || !r.hasToken(t) {
		return nil, ErrUnknownToken
	}
	return r.claim(), nil
}

// hasToken reports whether the record is that of a token's claim. The ID is only part of the token's hash, so the rest has to
// fit too.
func (r *record) hasToken(t Token) bool {
	want, err := hex.DecodeString(r.TokenSHA256)
	sum := t.hash()
	return err == nil && subtle.ConstantTimeCompare(sum[:], want) == 1
}
