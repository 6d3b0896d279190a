package wrapper

import (
	"context"
	"fmt"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/runtime"
	"github.com/tranche-gpu/tranche/runtime/compute"
	"github.com/tranche-gpu/tranche/runtime/request"
)

// claimSource is where a container's claims come from: claim tokens in its environment, for claims that exist, or a request
// of its own. It is nil for a container without either.
type claimSource struct {
	env map[string]string
	// compute is what the container states of its part of the GPUs' time, and computeOption where.
	compute       compute.Request
	computeOption string
	// local is the container's own request, nil for claim tokens.
	local *request.Request
}

// claimSourceOf reads the source from a container's spec, and refuses a request that the configuration does not allow.
func claimSourceOf(cfg runtime.Config, file *specFile) (*claimSource, error) {
	env := file.environment()
	local, requested, err := request.Parse(env, file.spec.Annotations)
	if err != nil {
		return nil, err
	}
	part, where, err := request.ParseCompute(env, file.spec.Annotations)
	if err != nil {
		return nil, err
	}
	tokens := claim.HasTokens(env)
	switch {
	case requested && tokens:
		return nil, fmt.Errorf("the container has claims that Nomad reserved for it (%s…) and requests %s besides; "+
			"a container gets its GPUs in one way: remove one of the two, or set %s to nothing if the image sets it",
			claim.EnvPrefix, request.MemoryEnv, request.MemoryEnv)
	case tokens:
		return &claimSource{env: env, compute: part, computeOption: where}, nil
	case requested:
		return &claimSource{env: env, compute: part, computeOption: where, local: &local}, cfg.LocalClaims.Allow(env)
	case part.Stated():
		return nil, fmt.Errorf("%s states a part of a GPU's time without an amount of memory; set %s too, such as %s=8GiB", where,
			request.MemoryEnv, request.MemoryEnv)
	}
	return nil, nil
}

// claims looks up the container's claims in the ledger, or reserves the one that it requests. A caller that cannot use the
// claims calls cancel.
func (s *claimSource) claims(ctx context.Context, cfg runtime.Config, ledger *claim.Ledger, workload claim.Workload) (
	claims []*claim.Claim, cancel func() error, err error,
) {
	nothing := func() error { return nil }
	if s.local == nil {
		claims, err = ledger.Reclaim(ctx, s.env, workload)
		return claims, func() error { return ledger.GiveUp(context.WithoutCancel(ctx), s.env) }, err
	}
	gpus, err := cfg.GPUs(ctx)
	if err != nil {
		return nil, nothing, err
	}
	shared, err := layout.Read(cfg.RunDir)
	if err != nil {
		return nil, nothing, err
	}
	node := request.Node{GPUs: gpus, Layout: shared, SliceBytes: cfg.SliceBytes, Enforcement: cfg.Enforcement}
	made, err := request.Reserve(ctx, ledger, node, *s.local, workload)
	if err != nil {
		return nil, nothing, err
	}
	// The context may be done: a timeout is one reason to cancel.
	cancel = func() error { return ledger.Cancel(context.WithoutCancel(ctx), made.ID) }
	return []*claim.Claim{made}, cancel, nil
}
