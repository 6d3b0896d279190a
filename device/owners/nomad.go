package owners

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/tranche-gpu/tranche/internal/nomadapi"
)

// The bounds of a query: how long it takes, and how much it answers.
const (
	queryTimeout   = 20 * time.Second
	maxAnswerBytes = 64 << 20
)

// client queries Nomad's API.
type client struct {
	options nomadapi.Options
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
	httpClient, err := c.options.HTTPClient()
	if err != nil {
		return err
	}
	defer httpClient.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(c.options.Address, "/")+path, nil)
	if err != nil {
		return err
	}
	token, err := c.options.Token()
	if err != nil {
		return err
	}
	if token != "" {
		request.Header.Set("X-Nomad-Token", token)
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
