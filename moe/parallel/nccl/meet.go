//go:build linux && (amd64 || arm64)

package nccl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"sonicmoe/driver"
	"sonicmoe/moe/parallel"
)

// This file connects the ranks of one host without NCCL, where that is possible.

// goDirect sets t.direct if all ranks are on one host and can open the memory of all others.
func (t *transport) goDirect(ctx context.Context) error {
	at := parallel.Step{Phase: "join"}
	d, failed := newDirect(t.dev, t.Rank(), t.Ranks(), t.ID)
	t.made = d
	if _, err := t.Share(ctx, at, nil); err != nil { // now all ranks have written to their mailboxes
		return err
	}
	if failed == nil {
		failed = d.sees()
	}
	if d != nil {
		d.unlink()
	}
	all, err := t.agree(ctx, at, failed)
	if err == nil && all {
		d.word(t.Rank(), readyAt).Store(0)
		if all, err = t.agree(ctx, at, nil); err == nil { // a barrier: no rank reads the numbers any more
			all, err = t.probe(ctx, at, d)
		}
	}
	if err != nil || !all {
		return err
	}
	t.direct = d
	t.helpers.Go(func() {
		select {
		case <-t.Broken():
			d.release(t.closed)
		case <-t.closed:
		}
	})
	return nil
}

// agree reports whether no rank has failed.
func (t *transport) agree(ctx context.Context, at parallel.Step, failed error) (bool, error) {
	word := int64(0)
	if failed != nil {
		word = 1
	}
	all, err := t.Share(ctx, at, []int64{word})
	if err != nil {
		return false, err
	}
	for _, of := range all {
		if of[0] != 0 {
			return false, nil
		}
	}
	return true, nil
}

// probe moves a few bytes directly between all ranks. It reports whether every rank has received
// them.
func (t *transport) probe(ctx context.Context, at parallel.Step, d *direct) (all bool, err error) {
	const each = 16
	memory, err := t.dev.Alloc(int64(each * (t.Ranks() + 1)))
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, t.dev.Free(memory)) }()
	pattern := func(rank int) []byte { return bytes.Repeat([]byte{byte(rank + 1)}, each) }
	if err := t.stream.CopyToDevice(memory, pattern(t.Rank())); err != nil {
		return false, err
	}
	e := parallel.Exchange{Send: memory, Receive: memory + each, Same: true}
	for range t.Ranks() {
		e.SendBytes, e.ReceiveBytes = append(e.SendBytes, each), append(e.ReceiveBytes, each)
	}
	list := []parallel.Exchange{e}
	messages, err := d.exchange(d.message(list), t.waiter(ctx, d))
	if err != nil {
		return false, err
	}
	copies, ok, failed := d.copies(list, messages)
	if failed == nil && !ok {
		failed = errors.New("a rank cannot export memory")
	}
	if all, err = t.agree(ctx, at, failed); err != nil || !all {
		return false, err
	}
	if failed = d.queue(t.stream, copies); failed == nil {
		failed = t.stream.Synchronize(ctx)
	}
	got := make([]byte, each*t.Ranks())
	if failed == nil {
		failed = t.stream.CopyToHost(got, e.Receive)
	}
	for rank := range t.Ranks() {
		if failed == nil && !bytes.Equal(got[rank*each:(rank+1)*each], pattern(rank)) {
			failed = fmt.Errorf("wrong bytes of rank %d", rank)
		}
	}
	return t.agree(ctx, at, failed)
}

// absent is the error of a wait that has ended without these ranks.
type absent struct {
	ranks []int
	error
}

// waiter returns the function by which a mailbox waits for a rank.
func (t *transport) waiter(ctx context.Context, d *direct) func(rank int, here func() bool) error {
	began := time.Now()
	return func(rank int, here func() bool) error {
		for !here() {
			select {
			case <-ctx.Done():
				a := absent{error: ctx.Err()}
				for other := range d.ranks {
					if d.complete(other).Load() < d.round {
						a.ranks = append(a.ranks, other)
					}
				}
				return a
			case <-t.Broken():
				return t.Err()
			default:
			}
			pause(began)
		}
		return nil
	}
}

// shareDirectly gives bytes to all ranks through the mailbox. The bytes follow the name of the step,
// which must be the same on all ranks.
func (t *transport) shareDirectly(ctx context.Context, at parallel.Step, own []byte) ([][]byte, error) {
	if err := t.Err(); err != nil {
		return nil, err // the other ranks do not get this rank's bytes any more
	}
	name := at.String() + "\n"
	all, err := t.direct.exchange(append([]byte(name), own...), t.waiter(ctx, t.direct))
	if err != nil {
		return nil, err
	}
	for rank, message := range all {
		if !bytes.HasPrefix(message, []byte(name)) {
			other, _, _ := bytes.Cut(message, []byte("\n"))
			return nil, fmt.Errorf("rank %d is in another step: %s", rank, other)
		}
		all[rank] = message[len(name):]
	}
	return all, nil
}

// moveDirectly queues exchanges on a stream. ok is false on all ranks if a rank's bytes are in memory
// that other ranks cannot open. Then nothing is queued.
func (t *transport) moveDirectly(ctx context.Context, at parallel.Step, s driver.Stream, list []parallel.Exchange) (ok bool, err error) {
	messages, err := t.shareDirectly(ctx, at, t.direct.message(list))
	if err != nil {
		return false, err
	}
	copies, ok, err := t.direct.copies(list, messages)
	if err != nil || !ok {
		return false, err
	}
	return true, t.direct.queue(s, copies)
}

// causeTimeout is the longest wait for the cause, after another rank has broken the group.
const causeTimeout = 5 * time.Second

// Err implements parallel.Transport. A rank that breaks the group first writes this to the mailbox.
// The cause comes a little later.
func (t *transport) Err() error {
	if err := t.Meeting.Err(); err != nil || t.direct == nil || !t.direct.broken() {
		return err
	}
	select {
	case <-t.Broken():
		return t.Meeting.Err()
	case <-time.After(causeTimeout):
		return errors.New("another rank has broken the group")
	}
}
