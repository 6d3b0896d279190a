package policy

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/claim/idle"
	"github.com/tranche-gpu/tranche/internal/namedfile"
	"github.com/tranche-gpu/tranche/internal/nomadapi"
	"github.com/tranche-gpu/tranche/internal/printable"
)

// Notice is what a webhook gets, as JSON.
type Notice struct {
	// Event is "warned" or "stopped".
	Event     idle.State `json:"event"`
	Time      time.Time  `json:"time"`
	Node      string     `json:"node"`
	Namespace string     `json:"namespace"`
	Job       string     `json:"job"`
	Group     string     `json:"group"`
	// Allocations are those that are idle, Since since when.
	Allocations []string  `json:"allocations"`
	Since       time.Time `json:"idle_since"`
	// StopAt is from when on the group is stopped; null if it is not.
	StopAt *time.Time `json:"stop_at"`
	// Message says the same to people.
	Message string `json:"message"`
}

// notice returns what there is to say of an allocation.
func (p *Policy) notice(i *idling, now time.Time) Notice {
	n := Notice{
		Event: i.state, Time: now.UTC(), Node: p.Node, Namespace: i.of.Namespace, Job: i.of.Job, Group: i.of.Group,
		Allocations: []string{i.of.Allocation}, Since: i.since.UTC(),
	}
	if i.rule.Action == Stop {
		at := i.stopAt().UTC()
		n.StopAt = &at
	}
	n.Message = fmt.Sprintf("Tranche's idle policy on %s: %s has not used its GPU since %s",
		p.Node, printable.Text(n.Namespace+"/"+n.Job+"/"+n.Group), n.Since.Format(time.RFC3339))
	switch {
	case n.Event == idle.Stopped:
		n.Message += ", so it is stopped"
	case n.StopAt != nil:
		n.Message += ", and is stopped at " + n.StopAt.Format(time.RFC3339) + " unless it does"
	}
	return n
}

const (
	// waitingNotices is how many notices wait at most for a webhook that does not answer.
	waitingNotices = 100
	webhookTimeout = 10 * time.Second
)

// webhookPauses are how long is waited after each attempt that failed but the last.
var webhookPauses = []time.Duration{time.Second, 10 * time.Second}

// webhook sends notices to the URL in a file, which may have a secret in it: no error and no log has it.
type webhook struct {
	file    string
	logger  hclog.Logger
	client  *http.Client
	notices chan Notice
}

func newWebhook(file string, logger hclog.Logger) *webhook {
	return &webhook{
		file: file, logger: logger, notices: make(chan Notice, waitingNotices),
		client: &http.Client{
			// On a connection that is kept, Go logs what comes unasked, which may be the URL.
			Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true},
			Timeout:       webhookTimeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// send has run send a notice. It does not wait.
func (w *webhook) send(n Notice) {
	if w.file == "" {
		return
	}
	select {
	case w.notices <- n:
	default:
		w.logger.Warn("a notice is not sent: too many wait for the webhook", "job", n.Job)
	}
}

// run sends notices until the context ends.
func (w *webhook) run(ctx context.Context) {
	if w.file != "" {
		if _, err := w.address(); err != nil {
			w.logger.Warn("notices will not be delivered to the webhook", "error", err)
		}
	}
	for {
		select {
		case n := <-w.notices:
			w.deliver(ctx, n)
		case <-ctx.Done():
			return
		}
	}
}

// deliver tries a few times to send a notice.
func (w *webhook) deliver(ctx context.Context, n Notice) {
	for attempt := 0; ; attempt++ {
		err := w.post(ctx, n)
		if err == nil || ctx.Err() != nil {
			return
		}
		if attempt == len(webhookPauses) {
			w.logger.Warn("a notice was not delivered to the webhook", "event", string(n.Event), "job", n.Job, "error", err)
			return
		}
		select {
		case <-time.After(webhookPauses[attempt]):
		case <-ctx.Done():
			return
		}
	}
}

// address reads the URL, which can be replaced while the agent runs.
func (w *webhook) address() (*url.URL, error) {
	text, err := os.ReadFile(w.file)
	if err != nil {
		return nil, namedfile.Error("idle.webhook_file", err)
	}
	address, err := url.Parse(strings.TrimSpace(string(text)))
	if err != nil || address.Host == "" || address.Scheme != "https" && (address.Scheme != "http" || !nomadapi.OnThisMachine(address.Hostname())) {
		return nil, fmt.Errorf("idle.webhook_file: %s must have a single https URL, or one of the loopback interface", w.file)
	}
	return address, nil
}

func (w *webhook) post(ctx context.Context, n Notice) error {
	address, err := w.address()
	if err != nil {
		return err
	}
	body, err := json.Marshal(n)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address.String(), bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("idle.webhook_file: %s has no usable URL", w.file)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := w.client.Do(request)
	if err != nil {
		return withoutSecrets(err)
	}
	_ = response.Body.Close()
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("it answered %d %s", response.StatusCode, http.StatusText(response.StatusCode)) // not in its own words
	}
	return nil
}

// withoutSecrets returns why there was no answer, without the URL and without what the other side sent, which may repeat the URL.
func withoutSecrets(err error) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		err = failed.Err
	}
	var network net.Error
	var untrusted *tls.CertificateVerificationError
	if errors.As(err, &network) || errors.As(err, &untrusted) || errors.Is(err, http.ErrSchemeMismatch) {
		return err
	}
	return errors.New("what it sent is no HTTP response")
}
