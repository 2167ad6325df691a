//go:build linux && (amd64 || arm64)

package nccl

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// mailbox is memory that the ranks of a host share, by which each rank gives bytes to every other
// rank. It begins with a line of counters for each rank. Then each rank has two slots for its bytes,
// which take turns.
type mailbox struct {
	rank, ranks int
	file        string
	memory      []byte
	round       uint64 // the number of rounds that this rank has begun
}

const (
	// lineBytes is the size of a rank's counters: the number of rounds whose bytes are complete
	// (u64), two words that streams write, see direct, and a word that is 1 if the rank has broken the
	// group.
	lineBytes                 = 64
	readyAt, doneAt, brokenAt = 8, 12, 16
	// slotBytes is the size of a slot: the number of bytes that are left (u64), then as many of them
	// as fit.
	slotBytes = 1 << 16
)

// headBytes returns the size of the counters of all ranks, in whole pages.
func headBytes(ranks int) int {
	page := os.Getpagesize()
	return (ranks*lineBytes + page - 1) / page * page
}

// openMailbox maps the file of a group. All ranks derive its name from the group's id.
func openMailbox(rank, ranks int, id []byte) (*mailbox, error) {
	m := &mailbox{rank: rank, ranks: ranks, file: filepath.Join("/dev/shm", fmt.Sprintf("sonicmoe-%x", sha256.Sum256(id)))}
	f, err := os.OpenFile(m.file, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	size := headBytes(ranks) + 2*ranks*slotBytes
	if err = f.Truncate(int64(size)); err == nil {
		m.memory, err = syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	// Goroutines may ask for the cause of a broken group after the transport has closed.
	runtime.AddCleanup(m, func(memory []byte) { _ = syscall.Munmap(memory) }, m.memory)
	return m, nil
}

// unlink removes the file's name. The memory stays until all ranks have closed it.
func (m *mailbox) unlink() { _ = os.Remove(m.file) } // another rank may have removed it

// head returns the counters of all ranks.
func (m *mailbox) head() []byte { return m.memory[:headBytes(m.ranks)] }

// complete returns the number of rounds whose bytes a rank has written.
func (m *mailbox) complete(rank int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&m.memory[rank*lineBytes]))
}

// word returns a word of a rank, at readyAt, doneAt or brokenAt.
func (m *mailbox) word(rank, at int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&m.memory[rank*lineBytes+at]))
}

// slot returns the slot of a rank in the present round.
func (m *mailbox) slot(rank int) []byte {
	at := headBytes(m.ranks) + (2*rank+int(m.round%2))*slotBytes
	return m.memory[at : at+slotBytes]
}

// exchange gives bytes to every rank, and returns the bytes of all ranks. All ranks of the group call
// exchange. The parameter wait returns when the function here reports that the rank's bytes are
// complete. Two slots are enough: a rank that has the bytes of a round from all ranks knows that all
// ranks have read the slots of the round before.
func (m *mailbox) exchange(own []byte, wait func(rank int, here func() bool) error) ([][]byte, error) {
	all := make([][]byte, m.ranks)
	for more := true; more; {
		m.round++
		slot := m.slot(m.rank)
		binary.LittleEndian.PutUint64(slot, uint64(len(own)))
		own = own[copy(slot[8:], own):]
		m.complete(m.rank).Store(m.round)
		more = false
		for rank := range all {
			if err := wait(rank, func() bool { return m.complete(rank).Load() >= m.round }); err != nil {
				return nil, err
			}
			slot := m.slot(rank)
			left := int(binary.LittleEndian.Uint64(slot))
			here := min(left, slotBytes-8)
			all[rank] = append(all[rank], slot[8:8+here]...)
			more = more || left > here
		}
	}
	return all, nil
}
