// Package hosted is a transport of package parallel between processes. The bytes go through host
// memory, and a function of the program exchanges them: the Python package passes
// all_to_all_single of torch.distributed. The transport works on every device, so the emulated
// device can be tested with several processes. Package nccl is the fast transport of GPUs.
//
// The ranks also hold TCP connections to rank 0. If a rank ends or breaks the group, all other
// ranks get an error at once, which names the rank.
package hosted

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"sonicmoe/driver"
	"sonicmoe/moe/parallel"
	"sonicmoe/moe/parallel/internal/meeting"
)

// Exchange sends bytes of host memory to every rank, and receives bytes from every rank. send has
// the bytes to send, ordered by receiving rank, and sendBytes has the number of bytes for each
// rank. receive and receiveBytes are the same for the received bytes, ordered by sending rank.
// Exchange returns when receive is complete, or when ctx ends. It must not use the slices after it
// has returned.
type Exchange func(ctx context.Context, send []byte, sendBytes []int64, receive []byte, receiveBytes []int64) error

// Options are the choices for [Connect].
type Options struct {
	// Rank is the number of this rank. Ranks is the number of ranks.
	Rank, Ranks int
	// Address is the host and port on which rank 0 listens.
	Address string
	// Token is a word that all ranks of a job know. It keeps ranks of other jobs out.
	Token string
	// Exchange moves the bytes. All ranks call it the same number of times.
	Exchange Exchange
}

// transport implements parallel.Transport.
type transport struct {
	*meeting.Meeting
	exchange Exchange
}

// version is the text that ranks compare when they meet. Ranks with other versions are refused.
const version = "transport hosted, version 1"

// Connect meets the other ranks.
func Connect(ctx context.Context, o Options) (parallel.Transport, error) {
	if o.Exchange == nil {
		return nil, errors.New("connecting a rank through host memory: Exchange is nil, want a function that moves bytes")
	}
	of := meeting.Options{Rank: o.Rank, Ranks: o.Ranks, Address: o.Address, Token: o.Token, Version: version}
	m, err := meeting.Meet(ctx, of, func() ([]byte, error) { return nil, nil })
	if err != nil {
		return nil, err
	}
	return &transport{m, o.Exchange}, nil
}

func (t *transport) Rank() int  { return t.Options.Rank }
func (t *transport) Ranks() int { return t.Options.Ranks }

// Close implements parallel.Transport.
func (t *transport) Close() error {
	t.Meeting.Close()
	return nil
}

// Share implements parallel.Transport. The first word that a rank sends tells its step and its
// number of words.
func (t *transport) Share(ctx context.Context, at parallel.Step, words []int64) ([][]int64, error) {
	own := binary.LittleEndian.AppendUint64(nil, stepWord(at, len(words)))
	for _, w := range words {
		own = binary.LittleEndian.AppendUint64(own, uint64(w))
	}
	each := int64(len(own))
	var send []byte
	sizes := make([]int64, t.Ranks())
	for i := range sizes {
		sizes[i] = each
		send = append(send, own...)
	}
	all := make([]byte, len(send))
	if err := t.run(ctx, at, send, sizes, all, sizes); err != nil {
		return nil, err
	}
	rows := make([][]int64, t.Ranks())
	for i := range rows {
		part := all[int64(i)*each : int64(i+1)*each]
		if binary.LittleEndian.Uint64(part) != stepWord(at, len(words)) {
			return nil, t.fail(at, fmt.Errorf("rank %d is in another step, or shares another number of words", i))
		}
		rows[i] = make([]int64, len(words))
		for j := range rows[i] {
			rows[i][j] = int64(binary.LittleEndian.Uint64(part[8*(j+1):]))
		}
	}
	return rows, nil
}

// stepWord returns a number that differs between steps.
func stepWord(at parallel.Step, words int) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, at, words)
	return h.Sum64()
}

// Move implements parallel.Transport. All exchanges of the list go in one exchange of host memory.
// Bytes that stay on this rank do not leave the device.
func (t *transport) Move(ctx context.Context, at parallel.Step, s driver.Stream, list ...parallel.Exchange) error {
	own := t.Rank()
	out, in := make([]int64, t.Ranks()), make([]int64, t.Ranks())
	for _, e := range list {
		if !e.InPlace && e.SendBytes[own] != e.ReceiveBytes[own] {
			return t.fail(at, fmt.Errorf("rank %d sends %d bytes to itself and expects %d", own, e.SendBytes[own], e.ReceiveBytes[own]))
		}
		if !e.InPlace {
			if err := s.Copy(e.To(own), e.From(own), e.SendBytes[own]); err != nil {
				return t.fail(at, err)
			}
		}
		for i := range out {
			if i != own {
				out[i] += e.SendBytes[i]
				in[i] += e.ReceiveBytes[i]
			}
		}
	}
	send, receive := make([]byte, sum(out)), make([]byte, sum(in))
	if err := t.pieces(send, list, func(e *parallel.Exchange, i int) (driver.DevicePtr, int64) { return e.From(i), e.SendBytes[i] }, s.CopyToHost); err != nil {
		return t.fail(at, err)
	}
	if err := t.run(ctx, at, send, out, receive, in); err != nil {
		return err
	}
	back := func(host []byte, p driver.DevicePtr) error { return s.CopyToDevice(p, host) }
	if err := t.pieces(receive, list, func(e *parallel.Exchange, i int) (driver.DevicePtr, int64) { return e.To(i), e.ReceiveBytes[i] }, back); err != nil {
		return t.fail(at, err)
	}
	return nil
}

// pieces copies between the parts of host memory and the device's memory: by rank, then by
// exchange. of returns the part of an exchange for a rank.
func (t *transport) pieces(host []byte, list []parallel.Exchange, of func(e *parallel.Exchange, rank int) (driver.DevicePtr, int64), copyPiece func([]byte, driver.DevicePtr) error) error {
	for i := range t.Ranks() {
		for j := range list {
			p, n := of(&list[j], i)
			if i == t.Rank() || n == 0 {
				continue
			}
			if err := copyPiece(host[:n], p); err != nil {
				return err
			}
			host = host[n:]
		}
	}
	return nil
}

func sum(list []int64) (n int64) {
	for _, v := range list {
		n += v
	}
	return n
}

// patience is how long a failed exchange waits for the reason that the ranks tell each other. This
// reason names the rank that is gone. The error of the program's function may not name the rank.
const patience = 2 * time.Second

// run calls the program's function. The call ends when the group breaks.
func (t *transport) run(ctx context.Context, at parallel.Step, send []byte, out []int64, receive []byte, in []int64) error {
	if t.Err() != nil {
		return t.fail(at, t.Err())
	}
	call, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-t.Broken():
			cancel()
		case <-call.Done():
		}
	}()
	err := t.exchange(call, send, out, receive, in)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return t.fail(at, ctx.Err())
	}
	select {
	case <-t.Broken():
	case <-time.After(patience):
	}
	return t.fail(at, err)
}

// fail breaks the group and returns an error of this rank. If the group is broken already, the
// error has the first cause.
func (t *transport) fail(at parallel.Step, cause error) error {
	if first := t.Err(); first != nil {
		cause = first
	}
	err := &parallel.Error{Rank: t.Rank(), Ranks: t.Ranks(), Step: at, Cause: cause}
	t.Abort(err)
	return err
}
