package claim

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"
)

// EnvPrefix begins the name of the environment variable that carries a claim token. The rest of the name is the
// claim's ID, so that the tokens of two claims in one environment don't overwrite each other.
const EnvPrefix = "TRANCHE_CLAIM_"

// IsTokenVariable reports whether an environment variable, given by its name or as NAME=VALUE, is one for a claim token.
func IsTokenVariable(variable string) bool { return strings.HasPrefix(variable, EnvPrefix) }

// HasTokens reports whether an environment has claim tokens.
func HasTokens(env map[string]string) bool {
	for name := range env {
		if IsTokenVariable(name) {
			return true
		}
	}
	return false
}

// WithoutTokens returns the entries of an environment that are not claim tokens.
func WithoutTokens(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), IsTokenVariable)
}

// VisibleDevices is the variable that NVIDIA's container runtime and hook read: with NoDevices they add no GPU, instead of a
// whole one.
const (
	VisibleDevices = "NVIDIA_VISIBLE_DEVICES"
	NoDevices      = "void"
)

// tokenBytes is the length of the random secret, before it is written as hex.
const tokenBytes = 16

const tokenRedacted = "[claim token]"

// Token is the secret that names a claim: 32 hex digits. Its bearer gets the claim, so printing, logging or encoding one writes
// a placeholder; only Reveal returns the secret.
//
// The secret is in a closure because a string, whatever methods its type has, is printed by code that uses the value itself:
// as a key of a JSON object, in a slice that hclog prints, under fmt's %p.
type Token struct{ reveal func() string }

var (
	_ fmt.Formatter = Token{}
	_ fmt.Stringer  = Token{}
)

func tokenOf(secret string) Token { return Token{func() string { return secret }} }

// newToken returns a token of 128 random bits.
func newToken() Token {
	var secret [tokenBytes]byte
	_, _ = rand.Read(secret[:]) // never fails, by its documentation
	return tokenOf(hex.EncodeToString(secret[:]))
}

// ParseToken parses a revealed token, such as the value of an environment variable.
func ParseToken(secret string) (Token, error) {
	if b, err := hex.DecodeString(secret); err != nil || len(b) != tokenBytes {
		return Token{}, fmt.Errorf("not a claim token, which has %d hex digits", 2*tokenBytes)
	}
	return tokenOf(secret), nil
}

// Reveal returns the secret, for the one variable that passes it to the container.
func (t Token) Reveal() string {
	if t.reveal == nil {
		return ""
	}
	return t.reveal()
}

// EnvName is the name of the environment variable that carries this token.
func (t Token) EnvName() string { return EnvPrefix + t.claimID() }

// String returns a placeholder, as do GoString, Format and MarshalText for fmt, hclog and encoders.
func (Token) String() string { return tokenRedacted }

// GoString returns the same placeholder.
func (Token) GoString() string { return tokenRedacted }

// Format writes it also for verbs for which fmt does not call String, such as a mistaken %d.
func (Token) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, tokenRedacted) }

// MarshalText returns the same placeholder.
func (Token) MarshalText() ([]byte, error) { return []byte(tokenRedacted), nil }

// hash returns the hash that the ledger has of a token.
func (t Token) hash() [sha256.Size]byte { return sha256.Sum256([]byte(t.Reveal())) }

func (t Token) claimID() string {
	sum := t.hash()
	return idOfHash(sum[:])
}

// idDigits is the number of hex digits of a claim's ID.
const idDigits = 8

// idOfHash returns the claim's ID, the first digits of its token's hash.
func idOfHash(sum []byte) string { return hex.EncodeToString(sum[:idDigits/2]) }
