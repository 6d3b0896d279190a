package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/tranche-gpu/tranche/internal/explain"
	"github.com/tranche-gpu/tranche/internal/nomadapi"
	"github.com/tranche-gpu/tranche/internal/nomadclient"
	"github.com/tranche-gpu/tranche/internal/recent"
)

const (
	// waitingFresh is how old an answer of Nomad's may be that several viewers share.
	waitingFresh = 10 * time.Second
	// waitingTimeout is how long a viewer waits for Nomad.
	waitingTimeout = 15 * time.Second
)

// waitingJobs asks Nomad what waits for devices. However many view it, Nomad is queried by one at a time, and now and then.
type waitingJobs struct {
	nomad nomadapi.Options
	last  recent.Value[*explain.Queue]
}

// queue returns what waits. Callers must not modify it.
func (w *waitingJobs) queue(ctx context.Context) (*explain.Queue, error) {
	return w.last.Get(waitingFresh, func() (*explain.Queue, error) {
		return w.take(context.WithoutCancel(ctx)) // for the others, too
	})
}

func (w *waitingJobs) take(ctx context.Context) (*explain.Queue, error) {
	ctx, cancel := context.WithTimeout(ctx, waitingTimeout)
	defer cancel()
	client, err := nomadclient.New(w.nomad)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	queue, err := explain.Waiting(ctx, client, nil)
	var response api.UnexpectedResponseError
	var unreachable *url.Error
	switch {
	case errors.As(err, &response) && response.StatusCode() == http.StatusForbidden:
		err = fmt.Errorf("%w; the token in nomad_token_file needs read-job in the namespaces that are to be seen, and node:read", err)
	case errors.As(err, &unreachable):
		err = fmt.Errorf("%w; check nomad_address in the configuration file, and that Nomad runs", err)
	}
	return queue, err
}
