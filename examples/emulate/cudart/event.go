//go:build cgo && linux

package main

import "C"

import (
	"sync"
	"time"
)

// event is a CUDA event. Its time is the time of the call that recorded it, because work runs when
// it is queued.
type event struct {
	timing bool

	mu       sync.Mutex
	time     time.Time // zero before the first record
	captured *graph    // the graph whose capture recorded the event last
	node     *node     // the latest node of that capture before the event
}

// Flags of events.
const disableTiming = 2

//export cudaEventCreate
func cudaEventCreate(p *uintptr) int32 { return cudaEventCreateWithFlags(p, 0) }

//export cudaEventCreateWithFlags
func cudaEventCreateWithFlags(p *uintptr, flags uint32) int32 {
	d := dev()
	*p = add(d, d.events, &event{timing: flags&disableTiming == 0})
	return 0
}

//export cudaEventDestroy
func cudaEventDestroy(h uintptr) int32 {
	return result("cudaEventDestroy", drop(dev(), dev().events, h, "event"))
}

func (d *device) record(h, stream uintptr) error {
	e, err := look(d, d.events, h, "event")
	if err != nil {
		return err
	}
	s, err := look(d, d.streams, stream, "stream")
	if err != nil {
		return err
	}
	if err := d.ready(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.time, e.captured, e.node = time.Now(), s.captured, s.last
	return nil
}

//export cudaEventRecord
func cudaEventRecord(h, stream uintptr) int32 {
	return result("cudaEventRecord", dev().record(h, stream))
}

//export cudaEventRecordWithFlags
func cudaEventRecordWithFlags(h, stream uintptr, _ uint32) int32 { return cudaEventRecord(h, stream) }

//export cudaEventQuery
func cudaEventQuery(h uintptr) int32 {
	_, err := look(dev(), dev().events, h, "event")
	if err == nil {
		err = dev().ready()
	}
	return result("cudaEventQuery", err)
}

//export cudaEventSynchronize
func cudaEventSynchronize(h uintptr) int32 {
	_, err := look(dev(), dev().events, h, "event")
	if err == nil {
		err = dev().finishAll()
	}
	return result("cudaEventSynchronize", err)
}

// elapsed returns the milliseconds that the emulator took between two events. A chip's time differs.
func (d *device) elapsed(from, to uintptr) (float32, error) {
	a, err := look(d, d.events, from, "event")
	if err != nil {
		return 0, err
	}
	b, err := look(d, d.events, to, "event")
	if err != nil {
		return 0, err
	}
	moment := func(e *event) time.Time {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.time
	}
	at, end := moment(a), moment(b)
	if at.IsZero() || end.IsZero() || !a.timing || !b.timing {
		return 0, failed(invalidHandle, "an event was not recorded, or made without timing")
	}
	return float32(end.Sub(at).Seconds() * 1000), d.ready()
}

//export cudaEventElapsedTime
func cudaEventElapsedTime(ms *float32, from, to uintptr) int32 {
	t, err := dev().elapsed(from, to)
	*ms = t
	return result("cudaEventElapsedTime", err)
}

// wait makes later work of a stream wait for an event. Outside of captures all recorded work has
// run, so there is nothing to do. If a running capture recorded the event, the stream joins the
// capture.
func (d *device) wait(stream, h uintptr) error {
	s, err := look(d, d.streams, stream, "stream")
	if err != nil {
		return err
	}
	e, err := look(d, d.events, h, "event")
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.captured == nil || !e.captured.capturing() {
		return nil
	}
	if s.captured != e.captured {
		s.captured, s.last = e.captured, e.node
		e.captured.join(s)
		return nil
	}
	if e.node != nil {
		join := &node{kind: nodeEmpty, after: []*node{e.node}}
		if s.last != nil {
			join.after = append(join.after, s.last)
		}
		s.captured.add(join)
		s.last = join
	}
	return nil
}

//export cudaStreamWaitEvent
func cudaStreamWaitEvent(stream, h uintptr, _ uint32) int32 {
	return result("cudaStreamWaitEvent", dev().wait(stream, h))
}
