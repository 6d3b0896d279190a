package cli

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/internal/nomadapi"
)

// TestWaitingJobs queries Nomad once for several viewers, with the token, which no error has.
func TestWaitingJobs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	const secret = "8f1e6d1c-secret"
	must.NoError(t, os.WriteFile(file, []byte(secret+"\n"), 0o600))
	for _, c := range []struct {
		status int
		wrong  string
	}{
		{http.StatusOK, ""},
		{http.StatusForbidden, "the token in nomad_token_file needs read-job"},
		{http.StatusInternalServerError, "list Nomad's blocked evaluations"},
		{http.StatusTemporaryRedirect, "list Nomad's blocked evaluations"},
	} {
		var queries atomic.Int32
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			queries.Add(1)
			must.Eq(t, secret, r.Header.Get("X-Nomad-Token"))
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(c.status)
			_, _ = w.Write([]byte("[]"))
		}))
		w := &waitingJobs{nomad: nomadapi.Options{Address: server.URL, TokenFile: file}}
		var first int32
		for range 3 {
			queue, err := w.queue(t.Context())
			if first == 0 {
				first = queries.Load()
			}
			if c.wrong == "" {
				must.NoError(t, err)
				must.Len(t, 0, queue.Groups)
				continue
			}
			must.ErrorContains(t, err, c.wrong)
			must.StrNotContains(t, err.Error(), secret)
		}
		must.Positive(t, first)
		must.Eq(t, first, queries.Load())
		server.Close()
	}
}

func TestWaitingJobs_Unreachable(t *testing.T) {
	w := &waitingJobs{nomad: nomadapi.Options{Address: "http://127.0.0.1:1"}}
	_, err := w.queue(t.Context())
	must.ErrorContains(t, err, "; check nomad_address in the configuration file")
}

func TestWaitingJobs_NoToken(t *testing.T) {
	w := &waitingJobs{nomad: nomadapi.Options{Address: "http://127.0.0.1:1", TokenFile: "/no/such/token"}}
	_, err := w.queue(t.Context())
	must.ErrorContains(t, err, "nomad_token_file: ")
}
