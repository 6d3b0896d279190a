package nvml

import (
	"context"
	"errors"
	"fmt"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

const (
	// eventWait is the longest wait for an event in one call of NVML. The session cannot end during it.
	eventWait = 500 * time.Millisecond
	// waitGrace is how long ending a session waits for such a call.
	waitGrace = eventWait + time.Second
	// eventPause is the pause after NVML could not wait, because the error repeats at once as long as a GPU is lost.
	eventPause = time.Second
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
	// UUID is that of the GPU, even if the event is about a MIG instance.
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
	// uuids are those of the GPUs: the UUID of a lost GPU cannot be read.
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

// listen waits once, for a session or for an event of it. It returns false when the context has ended.
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
		// There is no session, or none with events. Wait until one begins.
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

// subscribe subscribes to the events of all GPUs of the session. It begins no session, because that may start programs;
// only calls that need one do.
func (l *Library) subscribe(ctx context.Context) error {
	_, err := call(ctx, l, func() (struct{}, error) {
		if !l.started || !l.has(eventSymbols...) {
			return struct{}{}, errNoEvents
		}
		set, ret := l.lib.EventSetCreate()
		if ret != gonvml.SUCCESS {
			return struct{}{}, failure("create an event set", ret)
		}
		subscribed := &eventSet{set, l.register(set)}
		if len(subscribed.uuids) == 0 {
			_ = set.Free()
			return struct{}{}, errNoEvents
		}
		l.events.Store(subscribed)
		select {
		case <-l.begun: // it was about this session
		default:
		}
		return struct{}{}, nil
	})
	return err
}

// register registers a set for the Xid events of all GPUs, except those that have no events or do not answer.
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

// wait makes one call of NVML. The set is registered for Xid events only.
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
