package device

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim/health"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
)

func unhealthyOf(t *testing.T, p *Plugin) map[string]health.Condition {
	t.Helper()
	found, err := health.Read(p.node.Load().runDir)
	must.NoError(t, err)
	return found.GPUs
}

// The run directory says why a GPU is unhealthy, and since when, before that is published to Nomad.
func TestHealth_Published(t *testing.T) {
	a, b := nvmltest.H200(0), nvmltest.H200(1)
	fake := nvmltest.New(a, b)
	options := testOptions(t, neverByItself)
	p := newPlugin(t, fake, options)
	clock := moveByHand(p)
	ctx, cancel := contextWithCancel(t)
	stream, err := p.Fingerprint(ctx)
	must.NoError(t, err)
	next(t, stream)
	must.MapEmpty(t, unhealthyOf(t, p))

	must.NoError(t, fake.Post(t.Context(), nvml.Event{UUID: a.UUID, Xid: 79}))
	response := next(t, stream)
	found := unhealthyOf(t, p)
	must.MapLen(t, 1, found)
	first := found[a.UUID]
	must.True(t, strings.HasPrefix(first.Problem, "Xid 79: "))
	must.Eq(t, response.Devices[0].Devices[0].HealthDesc, first.Problem)

	clock.later.Add(int64(time.Hour))
	fake.SetGPUs(a)
	p.node.Load().wake()
	next(t, stream)
	found = unhealthyOf(t, p)
	must.Eq(t, first, found[a.UUID], must.Sprint("it is so since the first moment"))
	must.StrContains(t, found[b.UUID].Problem, "no longer lists")
	must.Eq(t, time.Hour, found[b.UUID].Since.Sub(first.Since).Round(time.Minute))
	cancel()
	for range stream {
	}

	// A plugin that is started while the driver is away knows nothing better.
	fake.SetError(&nvml.NoDriverError{Err: errors.New("not loaded")})
	p = newPlugin(t, fake, options)
	stream = fingerprint(t, p)
	next(t, stream)
	must.Eq(t, found, unhealthyOf(t, p))
	fake.SetError(nil)
	fake.SetGPUs(a, b)
	p.node.Load().wake()
	next(t, stream)
	must.MapEmpty(t, unhealthyOf(t, p))
}
