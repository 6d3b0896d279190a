package nvml

import (
	"context"
	"sync/atomic"
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

// A wait that fails for good is known, and another set is tried. That one may work.
func TestLibrary_Events_failForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const noWait, noSet, well = 0, 1, 2
		var driver atomic.Int32
		now := time.Unix(1000, 0)
		lib := eventful(func() gonvml.Return { return gonvml.SUCCESS })
		works, _ := lib.EventSetCreateFunc()
		fails := &mock.EventSet{
			FreeFunc: func() gonvml.Return { return gonvml.SUCCESS },
			WaitFunc: func(uint32) (gonvml.EventData, gonvml.Return) { return gonvml.EventData{}, gonvml.ERROR_UNKNOWN },
		}
		lib.EventSetCreateFunc = func() (gonvml.EventSet, gonvml.Return) {
			switch driver.Load() {
			case noWait:
				return fails, gonvml.SUCCESS
			case noSet:
				return nil, gonvml.ERROR_UNKNOWN
			}
			return works, gonvml.SUCCESS
		}
		l := loaded(lib, &now)
		must.NoError(t, l.EventsError())
		_, err := l.Read(t.Context())
		must.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		events := l.Events(ctx)
		time.Sleep(10*eventPause + eventPause/2)
		must.ErrorIs(t, l.EventsError(), gonvml.ERROR_UNKNOWN)
		must.Eq(t, len(lib.EventSetCreateCalls()), len(fails.FreeCalls())+1, must.Sprint("sets are left"))
		driver.Store(well)
		must.Eq(t, Event{UUID: uuid, Xid: 48}, <-events)
		synctest.Wait()
		must.NoError(t, l.EventsError())

		driver.Store(noSet)
		must.NoError(t, l.Close(t.Context()))
		_, err = l.Read(t.Context())
		must.NoError(t, err)
		must.Eq(t, Event{UUID: uuid, Xid: 48}, <-events, must.Sprint("the one that was on its way"))
		time.Sleep(3 * eventPause)
		must.ErrorIs(t, l.EventsError(), gonvml.ERROR_UNKNOWN)
		driver.Store(well)
		must.Eq(t, Event{UUID: uuid, Xid: 48}, <-events)
		cancel()
	})
}

// A wait that fails once loses no events: the set is kept.
func TestLibrary_Events_failOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now, waits := time.Unix(1000, 0), 0
		lib := eventful(func() gonvml.Return {
			if waits++; waits == 1 {
				return gonvml.ERROR_UNKNOWN
			}
			return gonvml.SUCCESS
		})
		l := loaded(lib, &now)
		_, err := l.Read(t.Context())
		must.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		must.Eq(t, Event{UUID: uuid, Xid: 48}, <-l.Events(ctx))
		must.Len(t, 1, lib.EventSetCreateCalls())
	})
}

// A GPU that cannot be registered is known, and tried again. The others have events meanwhile.
func TestLibrary_Events_registeredLater(t *testing.T) {
	for name, fails := range map[string]func(d *mock.Device, now func() gonvml.Return){
		"registering": func(d *mock.Device, now func() gonvml.Return) {
			d.RegisterEventsFunc = func(uint64, gonvml.EventSet) gonvml.Return { return now() }
		},
		"asking what there is": func(d *mock.Device, now func() gonvml.Return) {
			d.GetSupportedEventTypesFunc = func() (uint64, gonvml.Return) { return gonvml.EventTypeXidCriticalError, now() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var fault, empty atomic.Bool
				fault.Store(true)
				now := time.Unix(1000, 0)
				lib := eventful(func() gonvml.Return { time.Sleep(eventWait); return gonvml.ERROR_TIMEOUT })
				well, _ := lib.DeviceGetHandleByIndex(0)
				ill, types := device(), well.(*mock.Device).GetSupportedEventTypesFunc
				ill.GetUUIDFunc = func() (string, gonvml.Return) { return "GPU-ill", gonvml.SUCCESS }
				ill.GetSupportedEventTypesFunc = types
				ill.RegisterEventsFunc = func(uint64, gonvml.EventSet) gonvml.Return { return gonvml.SUCCESS }
				fails(ill, func() gonvml.Return {
					if fault.Load() {
						return gonvml.ERROR_UNKNOWN
					}
					return gonvml.SUCCESS
				})
				lib.DeviceGetCountFunc = func() (int, gonvml.Return) {
					if empty.Load() {
						return 0, gonvml.ERROR_UNKNOWN
					}
					return 2, gonvml.SUCCESS
				}
				lib.DeviceGetHandleByIndexFunc = func(index int) (gonvml.Device, gonvml.Return) {
					return []gonvml.Device{well, ill}[index], gonvml.SUCCESS
				}
				l := loaded(lib, &now)
				_, err := l.Read(t.Context())
				must.NoError(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				l.Events(ctx)
				time.Sleep(time.Minute)
				must.ErrorContains(t, l.EventsError(), "NVML could not register for events of the GPU GPU-ill")
				must.Len(t, 1, lib.EventSetCreateCalls())
				must.MapLen(t, 1, l.events.Load().uuids)
				fault.Store(false)
				time.Sleep(registerInterval + eventPause)
				must.NoError(t, l.EventsError())
				must.MapLen(t, 2, l.events.Load().uuids)

				empty.Store(true) // none at all
				must.NoError(t, l.subscribeAnew(t))
				time.Sleep(3 * eventPause)
				must.ErrorContains(t, l.EventsError(), "NVML could not count the GPUs")
			})
		})
	}
}

// subscribeAnew ends the session's subscription, as the end of the session does.
func (l *Library) subscribeAnew(t *testing.T) error {
	t.Helper()
	resume, err := l.endEvents()
	if err == nil {
		resume()
	}
	return err
}

// An event of a GPU by a handle that is not known has the UUID that this handle has, or none.
func TestLibrary_Events_unknownHandle(t *testing.T) {
	for _, known := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			now, want := time.Unix(1000, 0), ""
			detached := device()
			if !known {
				detached.GetUUIDFunc = func() (string, gonvml.Return) { return "", gonvml.ERROR_GPU_IS_LOST }
			} else {
				want = uuid
			}
			lib := eventful(func() gonvml.Return { return gonvml.SUCCESS })
			set, _ := lib.EventSetCreate()
			set.(*mock.EventSet).WaitFunc = func(uint32) (gonvml.EventData, gonvml.Return) {
				return gonvml.EventData{Device: detached, EventData: 79, GpuInstanceId: ^uint32(0)}, gonvml.SUCCESS
			}
			l := loaded(lib, &now)
			_, err := l.Read(t.Context())
			must.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			must.Eq(t, Event{UUID: want, Xid: 79}, <-l.Events(ctx))
		})
	}
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
		must.NoError(t, l.EventsError())
		time.Sleep(waitGrace + time.Nanosecond)
		must.ErrorContains(t, l.EventsError(), "does not return")

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
		must.NoError(t, l.EventsError())
		must.NoError(t, l.Close(t.Context()))
	})
}
