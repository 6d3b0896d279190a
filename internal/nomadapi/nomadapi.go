// Package nomadapi says how a program reaches the API of its node's Nomad agent, and keeps the ACL token from everybody else.
package nomadapi

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/tranche-gpu/tranche/internal/namedfile"
)

// Options are how Nomad's API is reached.
type Options struct {
	// Address is the URL of the API of this node's agent; empty for none.
	Address string
	// TokenFile holds an ACL token; empty for none. It is read for each query, so that the token can be replaced.
	TokenFile string
	// CAFile holds the certificates that the agent's is checked with, in PEM; empty for those of the system.
	CAFile string
}

// Check returns an error that names the option that is wrong.
func (o Options) Check() error {
	if o.Address == "" {
		if o.TokenFile != "" || o.CAFile != "" {
			return errors.New("nomad_token_file and nomad_ca_file need nomad_address, such as \"http://127.0.0.1:4646\"")
		}
		return nil
	}
	u, err := url.Parse(o.Address)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || strings.Trim(u.Path, "/") != "":
		return errors.New("nomad_address must be the URL of the agent, such as \"http://127.0.0.1:4646\", without user and path")
	case u.Scheme == "http" && !OnThisMachine(u.Hostname()):
		return fmt.Errorf("nomad_address must be https, or an address of the loopback interface: a token that leaves the machine "+
			"must be encrypted, got %q", o.Address)
	}
	for option, path := range map[string]string{"nomad_token_file": o.TokenFile, "nomad_ca_file": o.CAFile} {
		if path != "" && !strings.HasPrefix(path, "/") {
			return fmt.Errorf("%s must be an absolute path, got %q", option, path)
		}
	}
	return nil
}

// OnThisMachine reports whether a host name is one of the loopback interface.
func OnThisMachine(host string) bool {
	address := net.ParseIP(host)
	return host == "localhost" || address != nil && address.IsLoopback()
}

// CheckEnvironment returns an error if a file is missing that the environment names as for the command nomad. The errors of Nomad's
// own client do not say which.
func CheckEnvironment() error {
	for _, variable := range []string{"NOMAD_CACERT", "NOMAD_CAPATH", "NOMAD_CLIENT_CERT", "NOMAD_CLIENT_KEY"} {
		if err := namedfile.Check(variable, os.Getenv(variable)); err != nil {
			return err
		}
	}
	return nil
}

// Token returns the ACL token; empty if there is none.
func (o Options) Token() (string, error) {
	if o.TokenFile == "" {
		return "", nil
	}
	token, err := os.ReadFile(o.TokenFile)
	if err != nil {
		return "", namedfile.Error("nomad_token_file", err)
	}
	return strings.TrimSpace(string(token)), nil
}

// HTTPClient returns a client that sends the token to the agent alone: through no proxy, and not where a redirection leads.
func (o Options) HTTPClient() (*http.Client, error) {
	transport := &http.Transport{}
	if o.CAFile != "" {
		text, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, namedfile.Error("nomad_ca_file", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("nomad_ca_file: %s has no certificate in PEM", o.CAFile)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}
