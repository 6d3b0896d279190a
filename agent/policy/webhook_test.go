package policy

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"
)

const secretPath = "/hook/T0PSECRET"

func newHook(t *testing.T, url string) (*webhook, *strings.Builder) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "webhook")
	must.NoError(t, os.WriteFile(file, []byte(url+"\n"), 0o600))
	log := new(strings.Builder)
	return newWebhook(file, hclog.New(&hclog.LoggerOptions{Output: log})), log
}

// retryAtOnce has deliveries not wait between attempts.
func retryAtOnce(t *testing.T) {
	before := webhookPauses
	webhookPauses = make([]time.Duration, len(before))
	t.Cleanup(func() { webhookPauses = before })
}

// TestWebhook gets the notices of a job that is warned and then stopped, the first of them at the third attempt.
func TestWebhook(t *testing.T) {
	retryAtOnce(t)
	answers := []int{http.StatusBadGateway, http.StatusFound, http.StatusNoContent, http.StatusOK}
	got := make(chan Notice, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		must.Eq(t, secretPath, r.URL.Path)
		must.Eq(t, http.MethodPost, r.Method)
		must.Eq(t, "application/json", r.Header.Get("Content-Type"))
		var n Notice
		must.NoError(t, json.NewDecoder(r.Body).Decode(&n))
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(answers[0])
		answers = answers[1:]
		got <- n
	}))
	defer server.Close()
	n := newNode(t, "[idle]\npolicy = 'stop'\nafter = '1h'\ngrace = '10m'")
	hook, log := newHook(t, server.URL+secretPath)
	n.webhook = hook
	go hook.run(t.Context())
	n.alloc(fakeAlloc{id: "alloc-1", job: "train"})
	n.after(time.Hour)
	since, stop := time.Unix(1_800_000_000, 0).UTC(), time.Unix(1_800_000_000+4200, 0).UTC()
	want := Notice{
		Event: "warned", Time: n.now.UTC(), Node: "gpu-7", Namespace: "default", Job: "train", Group: "g", Allocations: []string{"alloc-1"},
		Since: since, StopAt: &stop,
		Message: "Tranche's idle policy on gpu-7: default/train/g has not used its GPU since 2027-01-15T08:00:00Z, and is stopped at " +
			"2027-01-15T09:10:00Z unless it does",
	}
	next := func() Notice {
		select {
		case n := <-got:
			return n
		case <-time.After(30 * time.Second):
			t.Fatal("no notice came")
			return Notice{}
		}
	}
	for range 3 {
		must.Eq(t, want, next())
	}
	n.after(10 * time.Minute)
	stopped := next()
	must.Eq(t, "stopped", string(stopped.Event))
	must.StrHasSuffix(t, "2027-01-15T08:00:00Z, so it is stopped", stopped.Message)
	must.Eq(t, "", log.String())
}

func TestWebhook_NeverLogsItsURL(t *testing.T) {
	retryAtOnce(t)
	server := httptest.NewServer(http.NotFoundHandler())
	gone := httptest.NewServer(nil)
	gone.Close()
	for url, want := range map[string]string{
		server.URL + secretPath:             "it answered 404",
		gone.URL + secretPath:               "connect",
		"http://hooks.example" + secretPath: "must have a single https URL",
		"https:// x" + secretPath:           "must have a single https URL",
		"":                                  "must have a single https URL",
	} {
		hook, log := newHook(t, url)
		hook.deliver(t.Context(), Notice{Job: "train"})
		must.Eq(t, 1, strings.Count(log.String(), "was not delivered"), must.Sprint(url))
		must.StrContains(t, log.String(), want)
		must.StrNotContains(t, log.String(), "T0PSECRET")
	}
	hook, log := newHook(t, "")
	hook.file += "-absent"
	hook.deliver(t.Context(), Notice{})
	must.StrContains(t, log.String(), "idle.webhook_file: open")
}

func TestWebhook_ThatHangs(t *testing.T) {
	hook, log := newHook(t, "https://hooks.example")
	for range waitingNotices {
		hook.send(Notice{})
	}
	must.Eq(t, "", log.String())
	hook.send(Notice{Job: "train"}) // returns
	must.StrContains(t, log.String(), "too many wait")
}
