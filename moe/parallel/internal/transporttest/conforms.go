// Package transporttest has the test that every transport of package parallel must pass.
package transporttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"sonicmoe/driver"
	"sonicmoe/moe/parallel"
)

// exchanges is the number of exchanges of a Move. They are many, so that a transport which has
// another way for many pieces uses it. area is the size of the memory that an exchange sends, and of
// the memory that it receives.
const (
	exchanges = 9
	area      = 1024
	gap       = 64
	untouched = 0xee
)

// Conforms runs calls of one rank, with memory of dev. All ranks must call Conforms at the same time.
// It checks the results of Share with several numbers of words. It checks Moves of uneven sizes, some
// of them 0, with and without gaps, with the same bytes for all ranks, and with a rank's own bytes in
// place. The rank overwrites what it has sent as soon as Move has returned.
func Conforms(ctx context.Context, tr parallel.Transport, dev driver.Device) error {
	s, err := dev.NewStream()
	if err != nil {
		return err
	}
	at, err := dev.Alloc(2 * exchanges * area)
	if err != nil {
		return err
	}
	for round := range 4 {
		if err := share(ctx, tr, round); err != nil {
			return err
		}
		if err := move(ctx, tr, s, at, round); err != nil {
			return err
		}
	}
	_, err = tr.Share(ctx, parallel.Step{Phase: "barrier"}, nil)
	return errors.Join(err, dev.Free(at), s.Close())
}

// share shares words, whose number differs from round to round.
func share(ctx context.Context, tr parallel.Transport, round int) error {
	words := func(rank int) []int64 { return []int64{int64(rank) - 2, 1 << 40, int64(round)}[:3-round] }
	all, err := tr.Share(ctx, parallel.Step{Phase: "words", Chunk: round}, words(tr.Rank()))
	if err != nil {
		return err
	}
	for rank := range tr.Ranks() {
		if !slices.Equal(all[rank], words(rank)) {
			return fmt.Errorf("rank %d, round %d: got the words %v of rank %d, want %v", tr.Rank(), round, all[rank], rank, words(rank))
		}
	}
	return nil
}

// move runs a Move, and compares all memory that it receives.
func move(ctx context.Context, tr parallel.Transport, s driver.Stream, at driver.DevicePtr, round int) error {
	send, want := bytes.Repeat([]byte{untouched}, exchanges*area), bytes.Repeat([]byte{untouched}, exchanges*area)
	list := make([]parallel.Exchange, exchanges)
	for k := range list {
		e := &list[k]
		*e = newExchange(tr, round, k)
		for rank := range tr.Ranks() {
			copy(send[k*area+int(e.From(rank)):], content(tr.Rank(), rank, round, k, e.SendBytes[rank], e.Same))
			if rank != tr.Rank() || !e.InPlace {
				copy(want[k*area+int(e.To(rank)):], content(rank, tr.Rank(), round, k, e.ReceiveBytes[rank], e.Same))
			}
		}
		e.Send, e.Receive = at+driver.DevicePtr(k*area), at+driver.DevicePtr((exchanges+k)*area)
	}
	received, got := at+exchanges*area, make([]byte, len(want))
	for _, step := range []func() error{
		func() error { return s.CopyToDevice(at, send) },
		func() error { return s.CopyToDevice(received, bytes.Repeat([]byte{untouched}, len(want))) },
		func() error { return tr.Move(ctx, parallel.Step{Phase: "bytes", Chunk: round}, s, list...) },
		func() error { return s.Fill32(at, 0, exchanges*area/4) },
		func() error { return s.CopyToHost(got, received) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	for k := range list {
		if g, w := got[k*area:(k+1)*area], want[k*area:(k+1)*area]; !bytes.Equal(g, w) {
			return fmt.Errorf("rank %d, round %d, exchange %d: got %v, want %v", tr.Rank(), round, k, g, w)
		}
	}
	return nil
}

// newExchange returns exchange k of a round, without addresses. Exchange 1 has a rank's own bytes in
// place, exchange 2 has gaps, and exchange 3 has the same bytes for all ranks.
func newExchange(tr parallel.Transport, round, k int) (e parallel.Exchange) {
	e.InPlace, e.Same = k == 1, k == 3
	size := func(from, to int) int64 {
		if e.Same {
			to = 0
		}
		return int64((7*from + 5*to + 3*k + round) % 4 * 16)
	}
	for rank := range tr.Ranks() {
		e.SendBytes, e.ReceiveBytes = append(e.SendBytes, size(tr.Rank(), rank)), append(e.ReceiveBytes, size(rank, tr.Rank()))
		if k == 2 {
			e.SendAt, e.ReceiveAt = append(e.SendAt, int64(gap*(tr.Ranks()-1-rank))), append(e.ReceiveAt, int64(gap*rank+16))
		}
	}
	return e
}

// content returns what one rank sends to another.
func content(from, to, round, k int, n int64, same bool) []byte {
	if same {
		to = 0
	}
	return bytes.Repeat([]byte{byte(1 + 60*round + 8*from + to + k)}, int(n))
}
