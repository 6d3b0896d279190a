package runtime

import (
	"context"
	"fmt"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/claim/memsize"
	"github.com/tranche-gpu/tranche/runtime/request"
)

// asks is how a container comes by its claims: by claim tokens in its environment, which somebody has reserved for it,
// or by what it asks for itself. It is nil for a container that does neither.
type asks struct {
	env map[string]string
	// local is what the container asks for itself, where that is not nil.
	local *request.Request
}

// asksOf reads how a container comes by claims, and refuses one that may not ask.
func asksOf(cfg Config, file *specFile) (*asks, error) {
	env := file.environment()
	local, asked, err := request.Parse(env, file.spec.Annotations)
	if err != nil {
		return nil, err
	}
	tokens := namesClaims(env)
	switch {
	case asked && tokens:
		return nil, fmt.Errorf("the container has claims that Nomad reserved for it (%s…) and asks for %s besides; "+
			"a container gets its GPUs in one way: remove one of the two, or set %s to nothing if the image brings it",
			claim.EnvPrefix, request.MemoryEnv, request.MemoryEnv)
	case tokens:
		return &asks{env: env}, nil
	case asked:
		return &asks{env: env, local: &local}, cfg.LocalClaims.Allow(env)
	}
	return nil, nil
}

// claims looks up the container's claims in the ledger, or makes the one that it asks for. Whoever can't go on with the
// claims after all calls cancel.
func (a *asks) claims(ctx context.Context, cfg Config, ledger *claim.Ledger) (
	claims []*claim.Claim, cancel func() error, err error,
) {
	nothing := func() error { return nil }
	if a.local == nil {
		claims, err = ledger.FromEnv(ctx, a.env)
		return claims, nothing, err
	}
	gpus, err := cfg.GPUs(ctx)
	if err != nil {
		return nil, nothing, err
	}
	shared, err := layout.Read(cfg.RunDir)
	if err != nil {
		return nil, nothing, err
	}
	made, err := request.Reserve(ctx, ledger, request.Node{GPUs: gpus, Layout: shared, SliceBytes: cfg.SliceBytes}, *a.local)
	if err != nil {
		return nil, nothing, err
	}
	// The reason to cancel may be that the time is up.
	cancel = func() error { return ledger.Cancel(context.WithoutCancel(ctx), made.ID) }
	return []*claim.Claim{made}, cancel, nil
}

// The memory of one slice unless the configuration says otherwise, and the least that it may be. Both are the device
// plugin's.
const (
	DefaultSliceBytes = 1 << 30
	minSliceBytes     = 64 << 20
)

func (c *Config) setAskingDefaults() {
	if c.SliceBytes == 0 {
		c.SliceBytes = DefaultSliceBytes
	}
	setDefault((*string)(&c.LocalClaims), string(request.On))
}

// readAsking reads the settings that are about containers that ask by themselves.
func (c *Config) readAsking(file configFile) (err error) {
	if c.LocalClaims, err = request.ParsePolicy(file.LocalClaims); err != nil {
		return fmt.Errorf("local_claims: %w", err)
	}
	if file.SliceMemory == "" {
		return nil
	}
	if c.SliceBytes, err = memsize.ParseGPU(file.SliceMemory); err != nil {
		return fmt.Errorf("slice_memory: %w", err)
	}
	if c.SliceBytes < minSliceBytes {
		return fmt.Errorf("slice_memory: %s is too little, it must be %s or more", file.SliceMemory,
			memsize.Format(minSliceBytes))
	}
	return nil
}
