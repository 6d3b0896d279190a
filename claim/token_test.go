package claim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"
)

func asError[T error](err error, target *T) bool { return errors.As(err, target) }

func TestTokenDoesNotLeak(t *testing.T) {
	token := newToken()
	var out bytes.Buffer
	for verb := 'A'; verb <= 'z'; verb++ {
		fmt.Fprintf(&out, "%"+string(verb)+"\n", token)
	}
	_, _ = fmt.Fprintf(&out, "%v %+v %#v %q %x %d\n", token, token, token, token, token, token)
	fmt.Fprintln(&out, token, &token, []Token{token}, map[string]Token{"t": token}, struct{ T Token }{token},
		struct{ t Token }{token})
	fmt.Fprintln(&out, fmt.Errorf("claim %s: %w", token, ErrUnknownToken))

	encoder := json.NewEncoder(&out)
	must.NoError(t, encoder.Encode(map[string]any{"token": token, "tokens": []Token{token}}))
	must.NoError(t, encoder.Encode(struct{ T, U any }{token, &token}))

	for _, asJSON := range []bool{false, true} {
		l := hclog.New(&hclog.LoggerOptions{Output: &out, Level: hclog.Trace, JSONFormat: asJSON})
		l.Info("reserved", "token", token, "all", []Token{token}, "fmt", hclog.Fmt("%d %s", token, token))
	}
	slog.New(slog.NewTextHandler(&out, nil)).Info("reserved", "token", token)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("reserved", "token", token)

	leaks := []string{token.Reveal(), strings.ToUpper(token.Reveal()), fmt.Sprintf("%x", token.Reveal())}
	for _, leak := range leaks {
		must.StrNotContains(t, out.String(), leak)
	}
	must.StrContains(t, out.String(), tokenRedacted)
}

func TestToken(t *testing.T) {
	token := newToken()
	must.StrHasPrefix(t, "TRANCHE_CLAIM_", token.EnvName())
	must.Eq(t, len("TRANCHE_CLAIM_")+8, len(token.EnvName()))
	must.Eq(t, 32, len(token.Reveal()))
	must.StrNotContains(t, token.Reveal(), token.claimID())
	again, err := ParseToken(token.Reveal())
	must.NoError(t, err)
	must.Eq(t, token.EnvName(), again.EnvName())
	must.NotEq(t, token.Reveal(), newToken().Reveal())
	must.Eq(t, "", Token{}.Reveal())
	for _, bad := range []string{"", "12", strings.Repeat("g", 32), token.Reveal() + "00"} {
		_, err := ParseToken(bad)
		must.ErrorContains(t, err, "32 hex digits")
	}
}
