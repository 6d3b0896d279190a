package owners

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
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

// Check returns an error that names the option of the device plugin that is wrong.
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
	case u.Scheme == "http" && !onThisMachine(u.Hostname()):
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

func onThisMachine(host string) bool {
	address := net.ParseIP(host)
	return host == "localhost" || address != nil && address.IsLoopback()
}

// The bounds of a query: how long it takes, and how much it answers.
const (
	queryTimeout   = 20 * time.Second
	maxAnswerBytes = 64 << 20
)

// client queries Nomad's API.
type client struct {
	options Options
	// nodeID is this node's, once the agent has answered.
	nodeID string
}

// allocation is the part of an allocation that says what its devices are for.
type allocation struct {
	ID, Namespace, JobID, TaskGroup, ClientStatus string
	// CreateTime is in nanoseconds.
	CreateTime int64
	Job        *struct{ ParentID string }

	AllocatedResources *struct {
		Tasks map[string]struct {
			Devices []struct{ DeviceIDs []string }
		}
	}
}

// ended reports whether no task of the allocation will start any more.
func (a *allocation) ended() bool {
	return a.ClientStatus == "complete" || a.ClientStatus == "failed" || a.ClientStatus == "lost"
}

// allocations returns the allocations of this node that the token may see.
func (c *client) allocations(ctx context.Context) ([]allocation, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	if c.nodeID == "" {
		var self struct {
			Stats map[string]map[string]string `json:"stats"`
		}
		if err := c.query(ctx, "/v1/agent/self", &self); err != nil {
			return nil, err
		}
		if c.nodeID = self.Stats["client"]["node_id"]; c.nodeID == "" {
			return nil, fmt.Errorf("the agent at %s is no client: nomad_address must be that of this node's agent", c.options.Address)
		}
	}
	var all []allocation
	err := c.query(ctx, "/v1/node/"+url.PathEscape(c.nodeID)+"/allocations", &all)
	return all, err
}

// query gets a resource. Errors never have the token.
func (c *client) query(ctx context.Context, path string, into any) error {
	httpClient, err := c.httpClient()
	if err != nil {
		return err
	}
	defer httpClient.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(c.options.Address, "/")+path, nil)
	if err != nil {
		return err
	}
	if c.options.TokenFile != "" {
		token, err := os.ReadFile(c.options.TokenFile)
		if err != nil {
			return fmt.Errorf("nomad_token_file: %w", err)
		}
		request.Header.Set("X-Nomad-Token", strings.TrimSpace(string(token)))
	}
	response, err := httpClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusForbidden {
		return fmt.Errorf("GET %s: permission denied: the token in nomad_token_file needs agent:read, node:read and read-job in "+
			"the namespaces of the jobs", path)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", path, response.Status)
	}
	return json.NewDecoder(io.LimitReader(response.Body, maxAnswerBytes)).Decode(into)
}

// httpClient returns a client that sends the token to the agent alone: through no proxy, and not where a redirection leads.
func (c *client) httpClient() (*http.Client, error) {
	transport := &http.Transport{}
	if c.options.CAFile != "" {
		text, err := os.ReadFile(c.options.CAFile)
		if err != nil {
			return nil, fmt.Errorf("nomad_ca_file: %w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("nomad_ca_file: %s has no certificate in PEM", c.options.CAFile)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}
