//go:build linux && (amd64 || arm64)

package nccl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"

	"sonicmoe/driver"
	"sonicmoe/driver/cuda"
	"sonicmoe/moe/parallel"
	"sonicmoe/moe/parallel/internal/meeting"
)

// transport implements parallel.Transport.
type transport struct {
	*meeting.Meeting
	lib    *library
	dev    driver.Device
	stream driver.Stream // the stream of Share
	words  driver.DevicePtr
	room   int64 // size of the memory at words, in bytes

	// comm points to the communicator, and NCCL writes it. ended reports whether the communicator
	// is destroyed.
	commMu sync.Mutex
	comm   *uintptr
	ended  bool

	// direct moves bytes between the ranks of one host without NCCL. It is nil if that is not possible.
	// made is the same, or what is left of an attempt. closed is closed when the transport closes, and
	// then helpers end.
	direct, made *direct
	closed       chan struct{}
	helpers      sync.WaitGroup
}

// idBytes is the size of an ncclUniqueId.
const idBytes = 128

// Connect meets the other ranks and makes an NCCL communicator of all ranks. dev is a GPU of
// package driver/cuda, and no other rank may have the same GPU.
func Connect(ctx context.Context, dev driver.Device, o Options) (parallel.Transport, error) {
	lib, err := openLibrary(o.Library)
	if err != nil {
		return nil, err
	}
	t := &transport{lib: lib, dev: dev, comm: new(uintptr), closed: make(chan struct{})}
	met := meeting.Options{Rank: o.Rank, Ranks: o.Ranks, Address: o.Address, Token: o.Token, Version: "NCCL " + versionText(lib.version)}
	if t.Meeting, err = meeting.Meet(ctx, met, t.makeID); err != nil {
		return nil, err
	}
	err = t.start(ctx)
	if err == nil && o.Ranks > 1 && !o.OnlyNCCL {
		err = t.goDirect(ctx)
	}
	if err != nil {
		err = &parallel.Error{Rank: o.Rank, Ranks: o.Ranks, Step: parallel.Step{Phase: "join"}, Cause: err}
		t.Abort(err)
		return nil, errors.Join(err, t.Close())
	}
	go func() {
		<-t.Broken()
		_ = t.end(commAbort) // err has the cause already
	}()
	return t, nil
}

func (t *transport) makeID() ([]byte, error) {
	id := make([]byte, idBytes)
	return id, t.lib.call(getUniqueID, uintptr(unsafe.Pointer(&id[0])))
}

// config is an ncclConfig_t of version 2.23. Later versions of NCCL tell by its size which fields
// it has.
type config struct {
	size                                       uint64
	magic, version                             uint32
	blocking, cgaClusterSize, minCTAs, maxCTAs int32
	netName                                    uintptr
	splitShare                                 int32
	_                                          int32
}

const (
	configMagic   = 0xcafebeef
	configVersion = 22304
	undefined     = -1 << 31
)

// start makes the communicator. It is non-blocking, so that every call can be aborted.
func (t *transport) start(ctx context.Context) (err error) {
	if t.stream, err = t.dev.NewStream(); err != nil {
		return err
	}
	c := &config{size: uint64(unsafe.Sizeof(config{})), magic: configMagic, version: configVersion,
		cgaClusterSize: undefined, minCTAs: undefined, maxCTAs: undefined, splitShare: undefined}
	return t.within(ctx, func() error {
		return t.lib.call(commInitRank, uintptr(unsafe.Pointer(t.comm)), uintptr(t.Ranks()), uintptr(t.Rank()), 1,
			uintptr(unsafe.Pointer(&t.ID[0])), uintptr(unsafe.Pointer(c)))
	})
}

func (t *transport) Rank() int  { return t.Options.Rank }
func (t *transport) Ranks() int { return t.Options.Ranks }

// impatience is how long a rank asks without a sleep whether work on the host has finished. A group
// of sends takes some microseconds, but the shortest sleep of an idle program takes about a
// millisecond.
const impatience = 2 * time.Millisecond

// pause lets other goroutines run before a rank asks again. The rank began to ask at the time began.
func pause(began time.Time) {
	if time.Since(began) < impatience {
		runtime.Gosched()
	} else {
		time.Sleep(100 * time.Microsecond)
	}
}

// within calls f in the device's context. It waits until NCCL has finished the part of the work
// that runs on the host.
func (t *transport) within(ctx context.Context, f func() error) error {
	began := time.Now()
	err := cuda.Within(t.dev, f)
	for errors.Is(err, errInProgress) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.Broken():
			return t.Err()
		default:
		}
		pause(began)
		err = cuda.Within(t.dev, t.asyncError)
	}
	return err
}

// asyncError returns the error state of the communicator, or errInProgress.
func (t *transport) asyncError() error {
	return t.use(func(comm uintptr) error {
		state := new(int32)
		if err := t.lib.call(commAsyncError, comm, uintptr(unsafe.Pointer(state))); err != nil {
			return err
		}
		return t.lib.check(commAsyncError, *state)
	})
}

// use calls f with the communicator, or returns an error if the communicator is destroyed.
func (t *transport) use(f func(comm uintptr) error) error {
	t.commMu.Lock()
	defer t.commMu.Unlock()
	if t.ended {
		return errors.Join(errors.New("the communicator is destroyed"), t.Err())
	}
	return f(*t.comm)
}

// end destroys the communicator by a call of the NCCL function that the parameter names. Later
// calls of end do nothing.
func (t *transport) end(by function) error {
	t.commMu.Lock()
	defer t.commMu.Unlock()
	if t.ended || *t.comm == 0 {
		return nil
	}
	t.ended = true
	err := cuda.Within(t.dev, func() error { return t.lib.call(by, *t.comm) })
	if errors.Is(err, errInProgress) {
		return nil
	}
	return err
}

// group runs calls of NCCL as one group, so that they start together. It returns when they are
// queued.
func (t *transport) group(ctx context.Context, calls func(comm uintptr) error) error {
	return t.within(ctx, func() error {
		return t.use(func(comm uintptr) error {
			if err := t.lib.call(groupStart); err != nil {
				return err
			}
			err := calls(comm)
			// A group that was started must be ended, also after an error.
			if end := t.lib.call(groupEnd); err == nil {
				err = end
			}
			return err
		})
	})
}

// queued makes a call inside a group. Such a call may report that it is in progress, which is no
// error.
func (t *transport) queued(f function, args ...uintptr) error {
	if err := t.lib.call(f, args...); err != nil && !errors.Is(err, errInProgress) {
		return err
	}
	return nil
}

// bytesType is ncclUint8.
const bytesType = 1

// Share implements parallel.Transport by an AllGather, or through the mailbox of the ranks of one
// host.
func (t *transport) Share(ctx context.Context, at parallel.Step, words []int64) ([][]int64, error) {
	own := make([]byte, 0, 8*len(words))
	for _, w := range words {
		own = binary.LittleEndian.AppendUint64(own, uint64(w))
	}
	parts, err := t.gatherParts(ctx, at, own)
	if err == nil {
		err = t.Err() // an aborted communicator returns no error and leaves wrong bytes
	}
	if err != nil {
		return nil, t.fail(at, err)
	}
	rows := make([][]int64, 0, t.Ranks())
	for rank, part := range parts {
		if len(part) < len(own) {
			return nil, t.fail(at, fmt.Errorf("rank %d shares %d words, this rank %d", rank, len(part)/8, len(words)))
		}
		row := make([]int64, len(words))
		for i := range row {
			row[i] = int64(binary.LittleEndian.Uint64(part[8*i:]))
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// gatherParts gives the bytes of every rank to every rank, and returns them by rank.
func (t *transport) gatherParts(ctx context.Context, at parallel.Step, own []byte) ([][]byte, error) {
	if t.direct != nil {
		return t.shareDirectly(ctx, at, own)
	}
	if len(own) == 0 { // a barrier gathers unused bytes
		own = make([]byte, 8)
	}
	all := make([]byte, len(own)*t.Ranks())
	err := t.gather(ctx, own, all)
	return slices.Collect(slices.Chunk(all, len(own))), err
}

// gather gives the bytes of every rank to every rank by NCCL.
func (t *transport) gather(ctx context.Context, own, all []byte) error {
	if need := int64(len(own) + len(all)); need > t.room {
		if err := t.dev.Free(t.words); err != nil {
			return err
		}
		var err error
		if t.words, err = t.dev.Alloc(need); err != nil {
			t.room, t.words = 0, 0
			return err
		}
		t.room = need
	}
	to := t.words + driver.DevicePtr(len(own))
	if err := t.stream.CopyToDevice(t.words, own); err != nil {
		return err
	}
	err := t.group(ctx, func(comm uintptr) error {
		return t.queued(allGather, uintptr(t.words), uintptr(to), uintptr(len(own)), bytesType, comm, t.stream.Handle())
	})
	if err != nil {
		return err
	}
	if err := t.stream.Synchronize(ctx); err != nil {
		return err
	}
	return t.stream.CopyToHost(all, to)
}

// Move implements parallel.Transport. Between the ranks of one host it queues copies, else a send to
// and a receive from each other rank. The host does not wait for the bytes.
func (t *transport) Move(ctx context.Context, at parallel.Step, s driver.Stream, list ...parallel.Exchange) error {
	if t.direct != nil {
		if ok, err := t.moveDirectly(ctx, at, s, list); err != nil {
			return t.fail(at, err)
		} else if ok {
			return nil
		}
	}
	for _, e := range list {
		own := t.Rank()
		if e.InPlace {
			continue
		}
		if e.SendBytes[own] != e.ReceiveBytes[own] {
			return t.fail(at, fmt.Errorf("rank %d sends %d bytes to itself and expects %d", own, e.SendBytes[own], e.ReceiveBytes[own]))
		}
		if err := s.Copy(e.To(own), e.From(own), e.SendBytes[own]); err != nil {
			return t.fail(at, err)
		}
	}
	err := t.group(ctx, func(comm uintptr) error {
		for _, e := range list {
			for i := range t.Ranks() {
				if err := t.exchange(comm, s, e, i); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return t.fail(at, err)
	}
	return nil
}

// exchange queues the send to rank i and the receive from rank i.
func (t *transport) exchange(comm uintptr, s driver.Stream, e parallel.Exchange, i int) error {
	if i == t.Rank() {
		return nil
	}
	if n := e.SendBytes[i]; n > 0 {
		if err := t.queued(send, uintptr(e.From(i)), uintptr(n), bytesType, uintptr(i), comm, s.Handle()); err != nil {
			return err
		}
	}
	if n := e.ReceiveBytes[i]; n > 0 {
		return t.queued(recv, uintptr(e.To(i)), uintptr(n), bytesType, uintptr(i), comm, s.Handle())
	}
	return nil
}

// fail breaks the group and returns an error of this rank. If the group is broken already, the
// error has the first cause.
func (t *transport) fail(at parallel.Step, cause error) error {
	if first := t.Err(); first != nil {
		cause = first
	}
	err := &parallel.Error{Rank: t.Rank(), Ranks: t.Ranks(), Step: at, Cause: cause}
	var of absent
	if errors.As(cause, &of) {
		err.Missing, err.Cause = of.ranks, of.error
	}
	t.Abort(err)
	return err
}

// Close implements parallel.Transport.
func (t *transport) Close() error {
	by := commDestroy
	if t.Err() != nil {
		by = commAbort
	}
	err := t.end(by)
	if t.made != nil {
		err = errors.Join(err, t.made.close(func() {
			close(t.closed)
			t.helpers.Wait()
		}))
	}
	t.Meeting.Close()
	if t.stream != nil {
		err = errors.Join(err, t.dev.Free(t.words), t.stream.Close())
	}
	return err
}
