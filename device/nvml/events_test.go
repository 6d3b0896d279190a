package nvml

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/shoenig/test/must"
)

// eventful is a node whose GPU has an Xid event at every wait.
func eventful(wait func() gonvml.Return) *mock.Interface {
	d := device()
	d.GetSupportedEventTypesFunc = func() (uint64, gonvml.Return) { return gonvml.EventTypeXidCriticalError, gonvml.SUCCESS }
	d.RegisterEventsFunc = func(uint64, gonvml.EventSet) gonvml.Return { return gonvml.SUCCESS }
	set := &mock.EventSet{
		FreeFunc: func() gonvml.Return { return gonvml.SUCCESS },
		WaitFunc: func(uint32) (gonvml.EventData, gonvml.Return) {
			const none = ^uint32(0)
			return gonvml.EventData{Device: d, EventData: 48, GpuInstanceId: none, ComputeInstanceId: none}, wait()
		},
	}
	lib := library(d)
	lib.EventSetCreateFunc = func() (gonvml.EventSet, gonvml.Return) { return set, gonvml.SUCCESS }
	lib.ExtensionsFunc = func() gonvml.ExtendedInterface {
		return &mock.ExtendedInterface{LookupSymbolFunc: hasOnly(eventSymbols...)}
	}
	return lib
}

// Whoever listens begins when a session does, and ends with the context, whether
// somebody takes the event or not: the bubble tells of goroutines that are left.
func TestLibrary_Events(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Unix(1000, 0)
		l := loaded(eventful(func() gonvml.Return { return gonvml.SUCCESS }), &now)
		ctx, cancel := context.WithCancel(t.Context())
		events := l.Events(ctx)
		synctest.Wait() // it has found no session
		_, err := l.Read(t.Context())
		must.NoError(t, err)
		must.Eq(t, Event{UUID: uuid, Xid: 48}, <-events)

		// In a new session, again.
		synctest.Wait() // it has the next event
		must.NoError(t, l.Close(t.Context()))
		must.Eq(t, Event{UUID: uuid, Xid: 48}, <-events, must.Sprint("the one that was on its way"))
		synctest.Wait()
		_, err = l.Read(t.Context())
		must.NoError(t, err)
		must.Eq(t, Event{UUID: uuid, Xid: 48}, <-events)

		synctest.Wait()
		cancel()
		synctest.Wait()
		select {
		case event, open := <-events:
			must.False(t, open, must.Sprintf("%v", event))
		default:
			t.Fatal("it goes on although the context has ended")
		}
	})
}

// What NVML says at once and again and again is asked for with pauses.
func TestLibrary_Events_pause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now, waits := time.Unix(1000, 0), 0
		l := loaded(eventful(func() gonvml.Return { waits++; return gonvml.ERROR_GPU_IS_LOST }), &now)
		_, err := l.Read(t.Context())
		must.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 10*eventPause-eventPause/2)
		defer cancel()
		for event := range l.Events(ctx) {
			t.Errorf("an event out of nothing: %v", event)
		}
		must.Eq(t, 10, waits)
	})
}

// A wait that never returns keeps nobody from anything but from ending the
// session.
func TestLibrary_Events_stuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		now := time.Unix(1000, 0)
		lib := eventful(func() gonvml.Return { <-release; return gonvml.ERROR_TIMEOUT })
		l := loaded(lib, &now)
		_, err := l.Read(t.Context())
		must.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		events := l.Events(ctx)
		synctest.Wait()
		cancel()
		_, open := <-events
		must.False(t, open)

		must.ErrorIs(t, l.Close(t.Context()), errStillWaiting)
		now = now.Add(restartInterval)
		tried := time.Now()
		for range 2 {
			l.restart = true
			_, err = l.Read(t.Context())
			must.NoError(t, err)
		}
		must.Eq(t, waitGrace, time.Since(tried), must.Sprint("how long it was held up"))
		must.Len(t, 1, lib.InitCalls(), must.Sprint("the session ended under a call"))
		close(release)
		synctest.Wait()
		must.NoError(t, l.Close(t.Context()))
	})
}
