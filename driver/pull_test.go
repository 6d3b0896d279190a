package driver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
	"github.com/shoenig/test/must"
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
			err := pullError(context.Background(), imageSource{given: "app", reference: "app:1"}, time.Second, tc.err)
			must.ErrorContains(t, err, tc.want)
			must.StrNotContains(t, err.Error(), "secret")
		})
	}
}
