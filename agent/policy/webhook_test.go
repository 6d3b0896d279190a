package policy

import (
	"context"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/idle"
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
	defer server.Close()
	redirects := httptest.NewServer(http.RedirectHandler("https://elsewhere.example"+secretPath, http.StatusFound))
	defer redirects.Close()
	encrypted := httptest.NewUnstartedServer(http.NotFoundHandler())
	encrypted.Config.ErrorLog = log.New(io.Discard, "", 0)
	encrypted.StartTLS()
	defer encrypted.Close()
	gone := httptest.NewServer(nil)
	gone.Close()
	unasked := new(strings.Builder)
	log.SetOutput(unasked)
	defer log.SetOutput(os.Stderr)
	for url, want := range map[string]string{
		server.URL + secretPath:                                                 "it answered 404 Not Found",
		redirects.URL + secretPath:                                              "it answered 302 Found",
		encrypted.URL + secretPath:                                              "certificate signed by unknown authority",
		"https" + strings.TrimPrefix(server.URL, "http") + secretPath:           "HTTP response to HTTPS client",
		repeater(t, "") + secretPath:                                            "what it sent is no HTTP response",
		repeater(t, "HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n") + secretPath: "it answered 500 Internal Server Error",
		repeater(t, "HTTP/1.1 500 ") + secretPath:                               "it answered 500 Internal Server Error",
		strings.Replace(gone.URL, "//", "//T0PSECRET:T0PSECRET@", 1):            "connect",
		gone.URL + secretPath:                                                   "connect",
		"http://hooks.example" + secretPath:                                     "must have a single https URL",
		"https:// x" + secretPath:                                               "must have a single https URL",
		"":                                                                      "must have a single https URL",
	} {
		hook, log := newHook(t, url)
		hook.deliver(t.Context(), Notice{Job: "train"})
		must.Eq(t, 1, strings.Count(log.String(), "was not delivered"), must.Sprint(url))
		must.StrContains(t, log.String(), want)
		must.StrNotContains(t, log.String(), "T0PSECRET")
	}
	must.Eq(t, "", unasked.String())
	hook, log := newHook(t, "")
	hook.file += "-absent"
	hook.deliver(t.Context(), Notice{})
	must.StrContains(t, log.String(), "idle.webhook_file: open "+hook.file+": no such file or directory; create it or correct the path")
}

// repeater is a server that answers with what it is sent, after a text.
func repeater(t *testing.T, text string) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			request := make([]byte, 4096)
			n, _ := connection.Read(request)
			_, _ = io.WriteString(connection, text+string(request[:n]))
			_ = connection.Close()
		}
	}()
	return "http://" + listener.Addr().String()
}

// TestWebhook_HostileNames has nothing that a terminal or another program would act on reach those who read a notice.
func TestWebhook_HostileNames(t *testing.T) {
	got := make(chan []byte, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		must.NoError(t, err)
		got <- body
	}))
	defer server.Close()
	const name = "\x1b[2J\r\n\u202e\",\"event\":\"stopped\xff</script>"
	p := &Policy{Options: Options{Node: "gpu-7"}}
	n := p.notice(&idling{allocation: allocation{of: claim.Workload{Namespace: "default", Job: name, Group: "g"}}, state: idle.Warned}, time.Now())
	must.StrContains(t, n.Message, `default/\x1b[2J\r\n\u202e","event":"stopped\xff</script>/g has not`)
	hook, log := newHook(t, server.URL)
	hook.deliver(t.Context(), n)
	must.Eq(t, "", log.String())
	body := <-got
	var sent Notice
	must.NoError(t, json.Unmarshal(body, &sent))
	must.Eq(t, strings.ToValidUTF8(name, "\ufffd"), sent.Job)
	must.Eq(t, "warned", string(sent.Event))
	for _, b := range body {
		must.True(t, b >= ' ' && b != '<', must.Sprintf("%q", body))
	}
}

// TestWebhook_EndlessAnswer does not read on once the status is known.
func TestWebhook_EndlessAnswer(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for err := error(nil); err == nil; {
			_, err = w.Write(make([]byte, 1<<16))
		}
	}))
	defer server.Close() // waits until the handler has ended
	hook, log := newHook(t, server.URL)
	hook.deliver(t.Context(), Notice{})
	must.Eq(t, "", log.String())
}

// TestWebhook_WrongFile says so when the agent starts, and not when it is needed.
func TestWebhook_WrongFile(t *testing.T) {
	hook, log := newHook(t, "http://hooks.example"+secretPath)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	hook.run(ctx)
	must.StrContains(t, log.String(), "must have a single https URL")
	must.StrNotContains(t, log.String(), "T0PSECRET")
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
