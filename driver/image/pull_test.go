package image

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"testing"

	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/recoverable"
)

func TestPullError_ShowsNoQuery(t *testing.T) {
	const address = "https://storage.example.com/blob?X-Sig=secret&b=secret#secret"
	cases := []struct {
		name string
		err  error
		want string
	}{
		{"a connection that broke", &url.Error{Op: "Get", URL: address, Err: errors.New("reset")},
			`Get "https://storage.example.com/blob?[redacted]": reset`},
		{"a quotation mark", &url.Error{Op: "Get", URL: `https://h/?a="secret`, Err: errors.New("reset")},
			`Get "https://h/?[redacted]": reset`},
		{"a status", remoteerrors.ErrUnexpectedStatus{Status: "500 Oops", StatusCode: 500, RequestURL: address},
			"https://storage.example.com/blob?[redacted] 500 Oops"},
		{"no permission", remoteerrors.ErrUnexpectedStatus{StatusCode: http.StatusForbidden, RequestURL: address},
			"without credentials"},
		{"not found", fmt.Errorf("%s: %w", address, errdefs.ErrNotFound), "check name and tag"},
		{"two", fmt.Errorf("HTTP://a/?secret then http://b/?secret"), "HTTP://a/?[redacted] then http://b/?[redacted]"},
		{"none", errors.New("http://a/b refused; why?"), "http://a/b refused; why?"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			err := explainPull(imageSource{given: "app", reference: "app:1"}, "linux/amd64", "", tc.err)
			must.ErrorContains(t, err, tc.want)
			must.StrNotContains(t, err.Error(), "secret")
		})
	}
}

func TestExplainPull(t *testing.T) {
	status := func(code int) error {
		return fmt.Errorf("fetch: %w", remoteerrors.ErrUnexpectedStatus{Status: fmt.Sprint(code), StatusCode: code})
	}
	cases := []struct {
		name        string
		err         error
		credentials string
		want        string
		recoverable bool
	}{
		{"no credentials", status(401), "", "without credentials", false},
		{"wrong credentials", status(401), "the task's auth block", "with the credentials from the task's auth block", false},
		{"not allowed", status(403), "the plugin's auth.config", "with the credentials from the plugin's auth.config", false},
		{"too often", status(429), "", "limits how often", true},
		{"out of order", status(503), "", "the registry failed", true},
		{"not there", status(404), "", "404", true},
		{"no such tag", fmt.Errorf("x: %w", errdefs.ErrNotFound), "", "check name and tag", false},
		{"no such platform", fmt.Errorf("no match for platform in manifest: %w", errdefs.ErrNotFound), "",
			"it has nothing for linux/amd64; check the option platform", false},
		{"no containerd", fmt.Errorf("x: %w", errdefs.ErrUnavailable), "", "containerd became unavailable", true},
		{"no containerd while it unpacks", fmt.Errorf("failed to extract layer x: unexpected EOF: %w", errdefs.ErrUnavailable), "",
			"containerd became unavailable", true},
		{"a broken layer", errors.New("failed to extract layer x: unexpected EOF"), "", "the image is broken", false},
		{"a connection that broke", errors.New("short read: unexpected EOF"), "", "short read", true},
		{"no room", errors.New("write /x: no space left on device"), "", "free space there", true},
		{"anything", errors.New("odd"), "", `pull image "app": odd`, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			err := explainPull(imageSource{given: "app", reference: "app:1"}, "linux/amd64", c.credentials, c.err)
			must.ErrorContains(t, err, c.want)
			must.ErrorContains(t, err, `pull image "app"`)
			must.Eq(t, c.recoverable, recoverable.Is(err))
		})
	}
}
