package nomadapi

import (
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

func TestOptions_Check(t *testing.T) {
	for _, o := range []Options{
		{}, {Address: "http://127.0.0.1:4646"}, {Address: "http://localhost:4646/"}, {Address: "http://[::1]:4646"},
		{Address: "https://nomad.example:4646", TokenFile: "/etc/tranche/token", CAFile: "/etc/tranche/ca.pem"},
	} {
		must.NoError(t, o.Check(), must.Sprint(o))
	}
	for _, o := range []Options{
		{TokenFile: "/token"}, {CAFile: "/ca"}, {Address: "127.0.0.1:4646"}, {Address: "unix:///run/nomad.sock"},
		{Address: "http://nomad.example:4646"}, {Address: "http://10.0.0.1"}, {Address: "https://user:pass@nomad.example"},
		{Address: "https://nomad.example/v1"}, {Address: "https://"}, {Address: "http://127.0.0.1:4646", TokenFile: "token"},
		{Address: "http://127.0.0.1:4646", CAFile: "ca.pem"}, {Address: "http://127.0.0.1.evil.example"},
	} {
		err := o.Check()
		must.Error(t, err, must.Sprint(o))
		must.True(t, strings.HasPrefix(err.Error(), "nomad_"), must.Sprint(err))
		must.StrNotContains(t, err.Error(), "pass@")
	}
}
