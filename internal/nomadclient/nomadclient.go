// Package nomadclient makes Nomad's own client of nomadapi's options. The device plugin does without it.
package nomadclient

import (
	"github.com/hashicorp/nomad/api"

	"github.com/tranche-gpu/tranche/internal/nomadapi"
)

// New returns a client with the token as it is now, which the caller closes. The environment of this process does not matter.
func New(o nomadapi.Options) (*api.Client, error) {
	token, err := o.Token()
	if err != nil {
		return nil, err
	}
	httpClient, err := o.HTTPClient()
	if err != nil {
		return nil, err
	}
	return api.NewClient(&api.Config{Address: o.Address, SecretID: token, HttpClient: httpClient})
}
