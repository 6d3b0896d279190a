package fleet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/tranche-gpu/tranche/internal/nodestats"
	"github.com/tranche-gpu/tranche/internal/nomadapi"
)

// listTimeout is how long Nomad may take for a list of all nodes or allocations.
const listTimeout = 15 * time.Second

// times are how old what Nomad has answered may be, and how long its answers are waited for.
type times struct {
	lists, statistics time.Duration
	// timeout is for the statistics of one node. A page waits as long as its patience for those of all: what comes later is on the next
	// one.
	timeout, patience time.Duration
}

var usualTimes = times{lists: 10 * time.Second, statistics: 30 * time.Second, timeout: 5 * time.Second, patience: 500 * time.Millisecond}

// Nomad is how the API is reached.
type Nomad struct {
	config api.Config
	times  times
}

const unixPrefix = "unix://"

// FromEnvironment returns how the API is reached, from the variables that the command nomad has. A token among them is not used.
func FromEnvironment() (*Nomad, error) {
	if err := nomadapi.CheckEnvironment(); err != nil {
		return nil, err
	}
	config := api.DefaultConfig()
	if err := checkAddress(config.Address); err != nil {
		return nil, err
	}
	transport := &http.Transport{
		MaxIdleConnsPerHost: nodestats.MostQueries, MaxConnsPerHost: 2 * nodestats.MostQueries, IdleConnTimeout: time.Minute, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if path, isSocket := strings.CutPrefix(config.Address, unixPrefix); isSocket {
		config.Address = "http://127.0.0.1"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}
	}
	// Neither a proxy nor what a redirection leads to gets viewers' tokens.
	config.HttpClient = &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if err := api.ConfigureTLS(config.HttpClient, config.TLSConfig); err != nil {
		return nil, fmt.Errorf("the TLS settings of Nomad's client (NOMAD_CACERT, NOMAD_CLIENT_CERT, …): %w", err)
	}
	return &Nomad{*config, usualTimes}, nil
}

// checkAddress refuses addresses on the way to which others could read viewers' tokens.
func checkAddress(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.User != nil:
		return errors.New("NOMAD_ADDR must be an address without a user, such as https://nomad.example.com:4646")
	case u.Scheme == "unix" && strings.HasPrefix(address, unixPrefix+"/"), u.Scheme == "https" && u.Host != "",
		u.Scheme == "http" && nomadapi.OnThisMachine(u.Hostname()):
		return nil
	}
	return fmt.Errorf("NOMAD_ADDR is %q: tokens that leave the machine must be encrypted; use https, an address of the loopback "+
		"interface, or unix:///PATH", address)
}

// client returns a client with a token, which may be none.
func (n *Nomad) client(token string) (*api.Client, error) {
	config := n.config
	config.SecretID = token
	return api.NewClient(&config)
}

// refused reports whether an error says that Nomad wants another token.
func refused(err error) bool {
	var response api.UnexpectedResponseError
	return errors.As(err, &response) && (response.StatusCode() == http.StatusForbidden || response.StatusCode() == http.StatusUnauthorized)
}

// live leaves out the allocations that hold nothing any more.
const live = `ClientStatus != "complete" and ClientStatus != "failed" and ClientStatus != "lost"`

// allocations returns what the client's token may see of all namespaces.
func allocations(ctx context.Context, client *api.Client) ([]*api.AllocationListStub, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	all, _, err := client.Allocations().List((&api.QueryOptions{
		Namespace: api.AllNamespacesNamespace, AllowStale: true, Filter: live,
		Params: map[string]string{"resources": "true", "task_states": "false"},
	}).WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("list Nomad's allocations: %w", err)
	}
	return all, nil
}

// nodes returns all nodes with their devices.
func nodes(ctx context.Context, client *api.Client) ([]*api.NodeListStub, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	all, _, err := client.Nodes().List((&api.QueryOptions{AllowStale: true, Params: map[string]string{"resources": "true"}}).WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("list Nomad's nodes: %w", err)
	}
	return all, nil
}

// mayReadNodes returns an error unless the client's token may read nodes and their statistics.
func mayReadNodes(ctx context.Context, client *api.Client) error {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	if _, _, err := client.Nodes().List((&api.QueryOptions{AllowStale: true, PerPage: 1}).WithContext(ctx)); err != nil {
		return fmt.Errorf("list Nomad's nodes: %w", err)
	}
	return nil
}
