// Package lanes copies many pieces of device memory on several streams in turns, because a copy
// between devices takes some time in which no bytes move.
package lanes

import (
	"errors"

	"sonicmoe/driver"
)

// Copy is a copy of device memory. The driver can read From from the device of To.
type Copy struct {
	To, From driver.DevicePtr
	Bytes    int64
}

// Lanes are streams of a device for copies that run at the same time as copies of another stream.
type Lanes struct {
	streams []driver.Stream
	// begun is recorded before the copies of a Run, and ended[i] after the copies of streams[i].
	begun driver.Event
	ended []driver.Event
}

// count is the number of lanes. A Run of fewer copies than few does not use them.
const count, few = 3, 8

// New makes the lanes of a device.
func New(dev driver.Device) (*Lanes, error) {
	l := &Lanes{}
	var err error
	if l.begun, err = dev.NewEvent(); err != nil {
		return nil, err
	}
	for range count {
		s, err := dev.NewStream()
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		l.streams = append(l.streams, s)
		e, err := dev.NewEvent()
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		l.ended = append(l.ended, e)
	}
	return l, nil
}

// Run queues copies. They follow the work of the stream s, and later work of s follows them. Many
// copies run on s and the lanes.
func (l *Lanes) Run(s driver.Stream, copies []Copy) error {
	streams := []driver.Stream{s}
	if len(copies) >= few {
		streams = append(streams, l.streams...)
		if err := l.begun.Record(s); err != nil {
			return err
		}
	}
	for _, lane := range streams[1:] {
		if err := lane.Wait(l.begun); err != nil {
			return err
		}
	}
	for i, c := range copies {
		if err := streams[i%len(streams)].Copy(c.To, c.From, c.Bytes); err != nil {
			return err
		}
	}
	for i, lane := range streams[1:] {
		if err := l.ended[i].Record(lane); err != nil {
			return err
		}
		if err := s.Wait(l.ended[i]); err != nil {
			return err
		}
	}
	return nil
}

// Close releases the streams and events.
func (l *Lanes) Close() error {
	err := l.begun.Close()
	for i, lane := range l.streams {
		err = errors.Join(err, lane.Close())
		if i < len(l.ended) {
			err = errors.Join(err, l.ended[i].Close())
		}
	}
	return err
}
