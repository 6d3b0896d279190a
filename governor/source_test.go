package governor

import (
	"context"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
)

// Events that the kernel lost were of something: what is governed is read again, and others are received still.
func TestSource_LostEvents(t *testing.T) {
	runDir := t.TempDir()
	ledger, err := claim.Open(claim.Options{StateDir: t.TempDir(), RunDir: runDir})
	must.NoError(t, err)
	s := &source{ledger: ledger, runDir: runDir, logger: hclog.NewNullLogger()}
	events, lost, found := make(chan fsnotify.Event), make(chan error), make(chan struct{}, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.follow(ctx, events, lost, func([]governed) { found <- struct{}{} })
	}()
	timeout := time.After(time.Minute)
	for range 2 {
		select {
		case lost <- fsnotify.ErrEventOverflow:
		case <-timeout:
			t.Fatal("nobody reads the errors, so that the watcher stops")
		}
		select {
		case <-found:
		case <-timeout:
			t.Fatal("nothing was read again")
		}
	}
	cancel()
	<-ended
}
