//go:build linux && (amd64 || arm64)

package nccl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"sonicmoe/driver"
	"sonicmoe/driver/cuda"
	"sonicmoe/moe/parallel"
	"sonicmoe/moe/parallel/internal/lanes"
)

// direct moves bytes between the processes of one host without NCCL. Each rank opens the memory of
// the other ranks, and copy engines copy to it. NCCL's kernels would wait for multiprocessors,
// which the kernels of products keep until they end. Copies that write to another GPU are faster than
// copies that read from it.
//
// The ranks exchange addresses through the mailbox. Two words of a rank order the streams: a stream
// writes the number of a Move to the word at readyAt when other ranks may write to the rank's memory,
// and to the word at doneAt when the rank has sent its bytes.
type direct struct {
	*mailbox
	dev   driver.Device
	words driver.DevicePtr // the device's address of the mailbox's counters
	lanes *lanes.Lanes
	moves uint32
	// exports has the IDs of this rank's allocations that other ranks know, and whether other ranks can
	// open the allocation. imports has the allocations of other ranks.
	exports map[uint64]bool
	imports map[place]*imported
}

// place names an allocation of a rank.
type place struct {
	rank int
	id   uint64
}

// imported is an allocation of another rank. at is 0 until this rank opens it.
type imported struct {
	handle cuda.MemoryHandle
	from   driver.DevicePtr // the address in the other rank's process
	bytes  int64
	at     driver.DevicePtr
}

// piece says where the bytes from a rank go: to an allocation, or to no allocation that other ranks
// can open if id is 0.
type piece struct{ id, offset, bytes int64 }

// pieceBytes and handleBytes are the sizes of a piece and of an allocation in a rank's message.
const (
	pieceBytes  = 3 * 8
	handleBytes = 3*8 + len(cuda.MemoryHandle{})
)

// newDirect makes the mailbox and the lanes of a rank. It writes the rank's number to the mailbox, by
// which other ranks see that they share memory with this rank.
func newDirect(dev driver.Device, rank, ranks int, id []byte) (d *direct, err error) {
	d = &direct{dev: dev, exports: map[uint64]bool{}, imports: map[place]*imported{}}
	if d.mailbox, err = openMailbox(rank, ranks, id); err != nil {
		return nil, err
	}
	if d.words, err = cuda.RegisterHost(dev, d.head()); err == nil {
		d.lanes, err = lanes.New(dev)
	}
	d.word(rank, readyAt).Store(uint32(rank + 1))
	return d, err
}

// sees returns an error unless this rank shares memory with all other ranks.
func (d *direct) sees() error {
	for rank := range d.ranks {
		if d.word(rank, readyAt).Load() != uint32(rank+1) {
			return fmt.Errorf("rank %d is on another host", rank)
		}
	}
	return nil
}

// message describes where this rank receives bytes: the allocations that other ranks do not know yet,
// and the pieces of each exchange.
func (d *direct) message(list []parallel.Exchange) []byte {
	var news, pieces []byte
	var last cuda.Allocation
	word := binary.LittleEndian.AppendUint64
	for _, e := range list {
		for from, bytes := range e.ReceiveBytes {
			p := e.To(from)
			if bytes == 0 || from == d.rank {
				pieces = append(pieces, make([]byte, pieceBytes)...)
				continue
			}
			if p < last.From || int64(p-last.From)+bytes > last.Bytes {
				last = d.allocation(p, &news)
			}
			pieces = word(word(word(pieces, last.ID), uint64(p-last.From)), uint64(bytes))
		}
	}
	return append(append(word(nil, uint64(len(news))), news...), pieces...)
}

// allocation returns the allocation at an address. If other ranks do not know it yet, allocation adds
// it to the news. If they cannot open it, the result is empty.
func (d *direct) allocation(p driver.DevicePtr, news *[]byte) (none cuda.Allocation) {
	a, err := cuda.AllocationOf(d.dev, p)
	if err != nil {
		return none
	}
	opens, known := d.exports[a.ID]
	if !known {
		handle, err := cuda.Export(d.dev, a)
		opens = err == nil
		d.exports[a.ID] = opens
		if opens {
			word := binary.LittleEndian.AppendUint64
			*news = append(word(word(word(*news, a.ID), uint64(a.From)), uint64(a.Bytes)), handle[:]...)
		}
	}
	if !opens {
		return none
	}
	return a
}

// read reads the message of a rank. It returns the rank's pieces, by exchange and sending rank.
func (d *direct) read(rank int, message []byte, exchanges int) ([]piece, error) {
	word := func(at int) int64 { return int64(binary.LittleEndian.Uint64(message[at:])) }
	news := int(word(0))
	pieces := message[8+news:]
	if len(pieces) != exchanges*d.ranks*pieceBytes {
		return nil, fmt.Errorf("rank %d makes %d exchanges, this rank %d", rank, len(pieces)/d.ranks/pieceBytes, exchanges)
	}
	for at := 8; at < 8+news && rank != d.rank; at += handleBytes {
		i := &imported{from: driver.DevicePtr(word(at + 8)), bytes: word(at + 16), handle: cuda.MemoryHandle(message[at+24:])}
		if err := d.forget(rank, i); err != nil {
			return nil, err
		}
		d.imports[place{rank, uint64(word(at))}] = i
	}
	list := make([]piece, exchanges*d.ranks)
	for i := range list {
		at := 8 + news + i*pieceBytes
		list[i] = piece{word(at), word(at + 8), word(at + 16)}
	}
	return list, nil
}

// forget closes the allocations of a rank which cannot exist any more, because a new one has their
// addresses.
func (d *direct) forget(rank int, now *imported) error {
	for of, old := range d.imports {
		if of.rank != rank || old.from >= now.from+driver.DevicePtr(now.bytes) || now.from >= old.from+driver.DevicePtr(old.bytes) {
			continue
		}
		delete(d.imports, of)
		if old.at != 0 {
			if err := cuda.CloseImport(d.dev, old.at); err != nil {
				return err
			}
		}
	}
	return nil
}

// address returns the address of a piece of another rank.
func (d *direct) address(rank int, p piece) (driver.DevicePtr, error) {
	of := d.imports[place{rank, uint64(p.id)}]
	if of == nil {
		return 0, fmt.Errorf("rank %d has sent no handle of its memory", rank)
	}
	if of.at == 0 {
		at, err := cuda.Import(d.dev, of.handle)
		if err != nil {
			return 0, fmt.Errorf("opening memory of rank %d: %w", rank, err)
		}
		of.at = at
	}
	return of.at + driver.DevicePtr(p.offset), nil
}

// copies returns the copies of all pieces that this rank sends. ok is false if a rank receives bytes in
// memory that other ranks cannot open. Then it is false on all ranks.
func (d *direct) copies(list []parallel.Exchange, messages [][]byte) (copies []lanes.Copy, ok bool, err error) {
	to := make([][]piece, d.ranks)
	for rank, message := range messages {
		if to[rank], err = d.read(rank, message, len(list)); err != nil {
			return nil, false, err
		}
	}
	if slices.ContainsFunc(slices.Concat(to...), func(p piece) bool { return p.bytes > 0 && p.id == 0 }) {
		return nil, false, nil
	}
	for i, e := range list {
		for k := range d.ranks {
			// Each rank begins with another receiver.
			rank := (d.rank + k) % d.ranks
			bytes := e.SendBytes[rank]
			if rank == d.rank {
				if bytes > 0 && !e.InPlace {
					copies = append(copies, lanes.Copy{To: e.To(rank), From: e.From(rank), Bytes: bytes})
				}
				continue
			}
			p := to[rank][i*d.ranks+d.rank]
			if p.bytes != bytes {
				return nil, false, fmt.Errorf("rank %d expects %d bytes, this rank sends %d", rank, p.bytes, bytes)
			}
			if bytes == 0 {
				continue
			}
			at, err := d.address(rank, p)
			if err != nil {
				return nil, false, err
			}
			copies = append(copies, lanes.Copy{To: at, From: e.From(rank), Bytes: bytes})
		}
	}
	return copies, true, nil
}

// queue queues the copies of a Move. They wait until the other ranks' memory may be written. Later work
// of the stream waits until the other ranks have sent their bytes.
func (d *direct) queue(s driver.Stream, copies []lanes.Copy) error {
	d.moves++
	if err := d.meet(s, readyAt); err != nil {
		return err
	}
	if err := d.lanes.Run(s, copies); err != nil {
		return err
	}
	return d.meet(s, doneAt)
}

// meet writes the number of the Move to this rank's word, and waits for the words of other ranks.
func (d *direct) meet(s driver.Stream, at int) error {
	word := func(rank int) driver.DevicePtr { return d.words + driver.DevicePtr(rank*lineBytes+at) }
	if err := cuda.WriteValue(s, word(d.rank), d.moves); err != nil {
		return err
	}
	for rank := range d.ranks {
		if rank == d.rank {
			continue
		}
		if err := cuda.WaitValue(s, word(rank), d.moves); err != nil {
			return fmt.Errorf("waiting for rank %d: %w", rank, err)
		}
	}
	return nil
}

// release ends the waits of all streams for this group's words, until the channel is closed. First it
// tells all ranks that the group is broken, because their streams go on with wrong bytes. It writes
// again and again, because a stream of another rank may write a word later.
func (d *direct) release(closed <-chan struct{}) {
	d.word(d.rank, brokenAt).Store(1)
	const above = 1 << 30 // more than every number that a stream waits for
	for {
		for rank := range d.ranks {
			d.word(rank, readyAt).Store(above)
			d.word(rank, doneAt).Store(above)
		}
		select {
		case <-closed:
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// broken reports whether a rank has broken the group.
func (d *direct) broken() bool {
	for rank := range d.ranks {
		if d.word(rank, brokenAt).Load() != 0 {
			return true
		}
	}
	return false
}

// closeTimeout is the longest wait for the device in close.
const closeTimeout = 10 * time.Second

// close waits for the device. Then it calls stop, after which no goroutine calls release, and releases
// everything but the mailbox.
func (d *direct) close(stop func()) error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := d.dev.Synchronize(ctx)
	stop()
	if err != nil {
		return err // streams may still use the memory
	}
	for _, of := range d.imports {
		if of.at != 0 {
			err = errors.Join(err, cuda.CloseImport(d.dev, of.at))
		}
	}
	if d.lanes != nil {
		err = errors.Join(err, d.lanes.Close())
	}
	if d.words != 0 {
		err = errors.Join(err, cuda.UnregisterHost(d.dev, d.head()))
	}
	return err
}
