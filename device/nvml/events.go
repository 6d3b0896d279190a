package nvml

import (
	"context"
	"errors"
	"fmt"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

const (
	// eventWait is the longest that NVML is let wait for an event at a time. The
	// session can't end meanwhile.
	eventWait = 500 * time.Millisecond
	// waitGrace is how long ending a session waits for that.
	waitGrace = eventWait + time.Second
	// eventPause is how long nothing is waited for after NVML could not wait: it
	// says so again at once as long as a GPU is lost.
	eventPause = time.Second
)

// eventSymbols are the functions by which events come.
var eventSymbols = []string{
	"nvmlEventSetCreate", "nvmlEventSetFree", "nvmlEventSetWait", "nvmlDeviceGetSupportedEventTypes",
	"nvmlDeviceRegisterEvents",
}

// errStillWaiting says that a session can't be ended.
var errStillWaiting = errors.New("NVML still waits for events and does not return: the session cannot end before")

// Event is an Xid error of a GPU: see VerdictOn for what it means.
type Event struct {
	// UUID is that of the GPU, also where a MIG instance of it is meant.
	UUID string
	Xid  uint64
	// Instance is the MIG instance that it is about; nil if it is about the GPU,
	// or the driver doesn't say.
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

// eventSet is where a session's events arrive. It ends with the session.
type eventSet struct {
	gonvml.EventSet
	// uuids names the GPUs: one that is lost doesn't tell its UUID any more.
	uuids map[gonvml.Device]string
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

// listen waits once for whatever is to be waited for next: a session, or an
// event of it. It returns false when the context has ended.
func (l *Library) listen(ctx context.Context, out chan<- Event) bool {
	event, err := l.nextEvent(ctx)
	var wakeUp <-chan time.Time
	switch {
	case ctx.Err() != nil:
		return false
	case errors.Is(err, errNoEvents):
		if l.subscribe(ctx) == nil {
			return true
		}
		// There is no session, or none with events: so it stays until one begins.
	case err != nil:
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

// subscribe has the events of all GPUs of the session arrive. It begins no
// session: that may start programs, and is up to whoever asks for something.
func (l *Library) subscribe(ctx context.Context) error {
	_, err := call(ctx, l, func() (struct{}, error) {
		if !l.started || !l.has(eventSymbols...) {
			return struct{}{}, errNoEvents
		}
		set, ret := l.lib.EventSetCreate()
		if ret != gonvml.SUCCESS {
			return struct{}{}, failure("make room for events", ret)
		}
		subscribed := &eventSet{set, l.register(set)}
		if len(subscribed.uuids) == 0 {
			_ = set.Free()
			return struct{}{}, errNoEvents
		}
		l.events.Store(subscribed)
		select {
		case <-l.begun: // it told of this session
		default:
		}
		return struct{}{}, nil
	})
	return err
}

// register has the Xid events of all GPUs arrive at a set. GPUs that have no
// events, or don't answer, are left out: others may have some.
func (l *Library) register(set gonvml.EventSet) map[gonvml.Device]string {
	uuids := make(map[gonvml.Device]string)
	count, ret := l.lib.DeviceGetCount()
	if ret != gonvml.SUCCESS {
		return uuids
	}
	for index := range count {
		device, ret := l.lib.DeviceGetHandleByIndex(index)
		if ret != gonvml.SUCCESS {
			continue
		}
		uuid, ret := device.GetUUID()
		if ret != gonvml.SUCCESS {
			continue
		}
		supported, ret := device.GetSupportedEventTypes()
		if ret != gonvml.SUCCESS || supported&gonvml.EventTypeXidCriticalError == 0 {
			continue
		}
		if device.RegisterEvents(gonvml.EventTypeXidCriticalError, set) == gonvml.SUCCESS {
			uuids[device] = uuid
		}
	}
	return uuids
}

// nextEvent has NVML wait for an event, for a while; there may be none. The wait
// has no turn, so that other calls go on, but it has the session, which can't
// end under it. It may never return: then the context ends this function only.
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
	type result struct {
		event *Event
		err   error
	}
	done := make(chan result, 1)
	go func() {
		event, err := set.wait()
		<-l.waiting
		done <- result{event, err}
	}()
	select {
	case r := <-done:
		return r.event, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// wait is one call of NVML. Nothing else than Xids was registered for.
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
	event := &Event{UUID: s.uuids[data.Device], Xid: data.EventData}
	if data.GpuInstanceId != none {
		event.Instance = &InstanceID{data.GpuInstanceId, data.ComputeInstanceId}
	}
	return event, nil
}

// endEvents has nobody wait for events of the session any more. Without an
// error nobody does until resume is called.
func (l *Library) endEvents() (resume func(), err error) {
	select {
	case l.waiting <- struct{}{}:
	case <-time.After(waitGrace):
		return nil, errStillWaiting
	}
	if set := l.events.Swap(nil); set != nil {
		// The session ends now, and the set with it, in any case.
		_ = set.Free()
	}
	return func() { <-l.waiting }, nil
}
