package nvml

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

const (
	// eventWait is the longest wait for an event in one call of NVML. The session cannot end during it.
	eventWait = 500 * time.Millisecond
	// waitGrace is how long ending a session waits for such a call.
	waitGrace = eventWait + time.Second
	// eventPause is the pause after NVML could not wait, because the error may repeat at once.
	eventPause = time.Second
	// registerInterval is how often GPUs are registered that could not be registered before.
	registerInterval = 5 * time.Second
)

// eventSymbols are the functions for events.
var eventSymbols = []string{
	"nvmlEventSetCreate", "nvmlEventSetFree", "nvmlEventSetWait", "nvmlDeviceGetSupportedEventTypes",
	"nvmlDeviceRegisterEvents",
}

// errStillWaiting says that a session cannot be ended.
var errStillWaiting = errors.New("NVML still waits for events and does not return: the session cannot end before")

// Event is an Xid error of a GPU: see VerdictOn for what it means.
type Event struct {
	// UUID is that of the GPU, even if the event is about a MIG instance. It is empty if NVML does not say which GPU it is,
	// so that it may be any.
	UUID string
	Xid  uint64
	// Instance is the MIG instance that the event is about; nil if it is about the GPU, or unknown.
	Instance *InstanceID
}

// InstanceID names a MIG instance of a GPU.
type InstanceID struct {
	GPUInstance, ComputeInstance uint32
}

// String describes the event for people.
func (e Event) String() string {
	text := fmt.Sprintf("Xid %d (%s)", e.Xid, VerdictOn(e.Xid).Meaning)
	if e.Instance != nil {
		text += fmt.Sprintf(" in the MIG instance %d/%d", e.Instance.GPUInstance, e.Instance.ComputeInstance)
	}
	return text
}

// eventSet receives a session's events. It ends with the session.
type eventSet struct {
	gonvml.EventSet
	// uuids are those of the GPUs that are registered: the UUID of a lost GPU cannot be read.
	uuids map[gonvml.Device]string
	// failed says why a GPU could not be registered, and registeredAt is when that was tried.
	failed       error
	registeredAt time.Time
	// failures counts the waits in a row that failed.
	failures int
}

// eventsState is whether the receiver of Events misses some.
type eventsState struct {
	mu  sync.Mutex
	err error
	// waitingSince is when the present wait began; zero if there is none.
	waitingSince time.Time
}

// Events implements Interface.
func (l *Library) Events(ctx context.Context) <-chan Event {
	out := make(chan Event)
	go func() {
		defer close(out)
		for l.listen(ctx, out) {
		}
	}()
	return out
}

// isBroken reports whether the session's set will not work again: it fails forever for a GPU that is lost, and otherwise that is
// assumed when it has failed twice in a row.
func (l *Library) isBroken(err error) bool {
	set := l.events.Load()
	return set != nil && (set.failures > 1 || errors.Is(err, gonvml.ERROR_GPU_IS_LOST))
}

// EventsError implements Interface.
func (l *Library) EventsError() error {
	s := &l.eventsState
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil && !s.waitingSince.IsZero() && time.Since(s.waitingSince) > waitGrace {
		return errors.New("NVML does not return from waiting for events")
	}
	return s.err
}

func (s *eventsState) set(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *eventsState) wait(since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waitingSince = since
}

// listen waits once, for a session or for an event of it. It returns false when the context has ended.
func (l *Library) listen(ctx context.Context, out chan<- Event) bool {
	event, err := l.nextEvent(ctx)
	switch {
	case errors.Is(err, errNoEvents):
		if err = l.subscribe(ctx); err == nil {
			return true
		}
	case err != nil && ctx.Err() == nil && l.isBroken(err):
		// Another set may work, but does not have the events that wait in this one.
		_ = l.subscribe(ctx)
	}
	var wakeUp <-chan time.Time
	switch {
	case ctx.Err() != nil:
		return false
	case errors.Is(err, errNoEvents):
		// There is no session, or none with events. Wait until one begins.
		l.eventsState.set(nil)
	case err != nil:
		l.eventsState.set(err)
		wakeUp = time.After(eventPause)
	case event != nil:
		select {
		case out <- *event:
			return true
		case <-ctx.Done():
			return false
		}
	default:
		return true
	}
	select {
	case <-wakeUp:
	case <-l.begun:
	case <-ctx.Done():
		return false
	}
	return true
}

// errNoEvents says that there is nothing to wait for events on.
var errNoEvents = errors.New("not subscribed to events")

// subscribe subscribes to the events of all GPUs of the session, in place of an earlier subscription. It begins no session,
// because that may start programs; only calls that need one do.
func (l *Library) subscribe(ctx context.Context) error {
	_, err := call(ctx, l, func() (struct{}, error) {
		if !l.started || !l.has(eventSymbols...) {
			return struct{}{}, errNoEvents
		}
		set, ret := l.lib.EventSetCreate()
		if ret != gonvml.SUCCESS {
			return struct{}{}, failure("create an event set", ret)
		}
		subscribed := &eventSet{EventSet: set, uuids: make(map[gonvml.Device]string)}
		l.register(subscribed)
		if len(subscribed.uuids) == 0 {
			_ = set.Free()
			return struct{}{}, cmp.Or(subscribed.failed, errNoEvents)
		}
		if old := l.events.Swap(subscribed); old != nil {
			_ = old.Free()
		}
		select {
		case <-l.begun: // it was about this session
		default:
		}
		return struct{}{}, nil
	})
	return err
}

// register registers a set for the Xid events of all GPUs that it does not have yet, except those that have no events or do
// not answer. The caller holds callLock.
func (l *Library) register(set *eventSet) {
	set.failed, set.registeredAt = nil, time.Now()
	count, ret := l.lib.DeviceGetCount()
	if ret != gonvml.SUCCESS {
		set.failed = failure("count the GPUs", ret)
		return
	}
	for index := range count {
		device, ret := l.lib.DeviceGetHandleByIndex(index)
		if ret != gonvml.SUCCESS {
			continue
		}
		uuid, ret := device.GetUUID()
		if _, registered := set.uuids[device]; registered || ret != gonvml.SUCCESS {
			continue
		}
		supported, ret := device.GetSupportedEventTypes()
		if unsupported(ret) || ret == gonvml.SUCCESS && supported&gonvml.EventTypeXidCriticalError == 0 {
			continue
		}
		if ret == gonvml.SUCCESS {
			ret = device.RegisterEvents(gonvml.EventTypeXidCriticalError, set.EventSet)
		}
		if ret == gonvml.SUCCESS {
			set.uuids[device] = uuid
		} else {
			set.failed = errors.Join(set.failed, failure("register for events of the GPU "+uuid, ret))
		}
	}
}

// registerAgain registers the GPUs that could not be registered before, now and then. Only the receiver calls it.
func (l *Library) registerAgain(ctx context.Context, set *eventSet) error {
	if set.failed == nil || time.Since(set.registeredAt) < registerInterval {
		return set.failed
	}
	_, err := call(ctx, l, func() (struct{}, error) {
		if l.events.Load() == set { // else the session has ended
			l.register(set)
		}
		return struct{}{}, set.failed
	})
	return err
}

// nextEvent waits for an event for a while, and returns nil if there was none. The wait does not hold callLock, so that
// other calls continue, but it holds waiting, so that the session cannot end. The call of NVML may never return: then the
// context ends this function only.
func (l *Library) nextEvent(ctx context.Context) (*Event, error) {
	select {
	case l.waiting <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	set := l.events.Load()
	if set == nil {
		<-l.waiting
		return nil, errNoEvents
	}
	l.eventsState.wait(time.Now())
	type result struct {
		event *Event
		err   error
	}
	done := make(chan result, 1)
	go func() {
		event, err := set.wait()
		l.eventsState.wait(time.Time{})
		<-l.waiting
		done <- result{event, err}
	}()
	select {
	case r := <-done:
		set.failures++
		if r.err == nil {
			set.failures = 0
			l.eventsState.set(l.registerAgain(ctx, set))
		}
		return r.event, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// wait makes one call of NVML. The set is registered for Xid events only. A GPU that was detached from the driver meanwhile, as
// when its MIG mode changed, has another handle than it had.
func (s *eventSet) wait() (*Event, error) {
	data, ret := s.Wait(uint32(eventWait.Milliseconds()))
	switch ret {
	case gonvml.SUCCESS:
	case gonvml.ERROR_TIMEOUT:
		return nil, nil
	default:
		return nil, failure("wait for events", ret)
	}
	const none = ^uint32(0)
	uuid, known := s.uuids[data.Device]
	if !known {
		uuid, _ = data.Device.GetUUID() // empty if it does not answer
	}
	event := &Event{UUID: uuid, Xid: data.EventData}
	if data.GpuInstanceId != none {
		event.Instance = &InstanceID{data.GpuInstanceId, data.ComputeInstanceId}
	}
	return event, nil
}

// endEvents ends the wait for events of the session. Without an error, none begins until resume is called.
func (l *Library) endEvents() (resume func(), err error) {
	select {
	case l.waiting <- struct{}{}:
	case <-time.After(waitGrace):
		return nil, errStillWaiting
	}
	if set := l.events.Swap(nil); set != nil {
		// An error does not matter: the set ends with the session.
		_ = set.Free()
	}
	return func() { <-l.waiting }, nil
}
