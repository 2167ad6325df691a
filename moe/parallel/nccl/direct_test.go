//go:build linux && (amd64 || arm64)

package nccl

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"sonicmoe/driver"
	"sonicmoe/driver/cuda"
	"sonicmoe/moe/parallel"
	"sonicmoe/moe/parallel/internal/transporttest"
)

// TestNotDirect checks that NCCL moves the bytes where the driver cannot share memory between
// processes.
func TestNotDirect(t *testing.T) {
	for _, function := range []string{"cuMemHostRegister_v2", "cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2", "cuStreamWriteValue32_v2"} {
		t.Run(function, func(t *testing.T) {
			fail(t, fakeCUDA, function, 801)
			for _, err := range ranksOf(t, 3, Options{}, func(tr parallel.Transport, dev driver.Device) error {
				if tr.(*transport).direct != nil {
					return errors.New("the way is direct")
				}
				return errors.Join(transporttest.Conforms(t.Context(), tr, dev), tr.Close())
			}) {
				require.NoError(t, err)
			}
		})
	}
}

// TestOtherMemory checks that NCCL moves the bytes of memory that other processes cannot open.
func TestOtherMemory(t *testing.T) {
	for _, err := range ranksOf(t, 3, Options{}, func(tr parallel.Transport, dev driver.Device) error {
		if tr.(*transport).direct == nil {
			return errors.New("the way is not direct")
		}
		if _, err := tr.Share(t.Context(), parallel.Step{Phase: "joined"}, nil); err != nil {
			return err
		}
		if tr.Rank() == 1 {
			fail(t, fakeCUDA, "cuIpcGetMemHandle", 801)
		}
		if _, err := tr.Share(t.Context(), parallel.Step{Phase: "failing"}, nil); err != nil {
			return err
		}
		err := transporttest.Conforms(t.Context(), tr, dev)
		if moves := tr.(*transport).direct.moves; moves != 1 {
			err = errors.Join(err, fmt.Errorf("%d direct moves, want only the one of the probe", moves))
		}
		return errors.Join(err, tr.Close())
	}) {
		require.NoError(t, err)
	}
}

// TestRankDiesInMove checks that streams which wait for a dead rank go on, and that the group is
// broken then.
func TestRankDiesInMove(t *testing.T) {
	at := parallel.Step{Phase: "dispatch"}
	errs := ranksOf(t, 3, Options{}, func(tr parallel.Transport, dev driver.Device) error {
		of := tr.(*transport)
		memory, err := dev.Alloc(64)
		if err != nil {
			return err
		}
		e := parallel.Exchange{Send: memory, Receive: memory + 32, SendBytes: []int64{8, 8, 8}, ReceiveBytes: []int64{8, 8, 8}}
		if tr.Rank() == 1 {
			// The rank tells its addresses, and dies before its stream writes.
			_, err = of.shareDirectly(t.Context(), at, of.direct.message([]parallel.Exchange{e}))
			of.Drop()
		} else {
			s, failed := dev.NewStream()
			if failed != nil {
				return failed
			}
			// The stand-in's stream waits in the call.
			if err = tr.Move(t.Context(), at, s, e); err == nil {
				err = tr.Err()
			}
			if err == nil {
				return errors.New("the group is whole")
			}
		}
		return errors.Join(err, tr.Close())
	})
	for _, rank := range []int{0, 2} {
		require.ErrorContains(t, errs[rank], "rank 1 is gone")
	}
}

// TestMailbox checks an exchange of bytes that fill several slots, of few bytes and of none.
func TestMailbox(t *testing.T) {
	id := make([]byte, idBytes)
	_, err := rand.Read(id)
	require.NoError(t, err)
	content := func(rank, turn int) []byte {
		return bytes.Repeat([]byte{byte(1 + rank + 10*turn)}, []int{3*slotBytes + 5, 3, 0, slotBytes - 8}[(rank+turn)%4])
	}
	const ranks = 4
	var g errgroup.Group
	for rank := range ranks {
		m, err := openMailbox(rank, ranks, id)
		require.NoError(t, err)
		defer m.unlink()
		g.Go(func() error {
			for turn := range 20 {
				all, err := m.exchange(content(rank, turn), func(_ int, here func() bool) error {
					for !here() {
						runtime.Gosched()
					}
					return nil
				})
				if err != nil {
					return err
				}
				for other, got := range all {
					if !bytes.Equal(got, content(other, turn)) {
						return fmt.Errorf("rank %d, turn %d: wrong bytes of rank %d", rank, turn, other)
					}
				}
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
}

// TestOldMemory checks that a rank closes an allocation of another rank when a new one has its
// addresses.
func TestOldMemory(t *testing.T) {
	dev := device(t)
	memory, err := dev.Alloc(256)
	require.NoError(t, err)
	other := &direct{mailbox: &mailbox{rank: 1, ranks: 2}, dev: dev, exports: map[uint64]bool{}}
	d := &direct{mailbox: &mailbox{ranks: 2}, dev: dev, imports: map[place]*imported{}}
	list := []parallel.Exchange{{Receive: memory + 16, ReceiveBytes: []int64{8, 0}}}
	for turn := range int64(3) {
		pieces, err := d.read(1, other.message(list), 1)
		require.NoError(t, err)
		at, err := d.address(1, pieces[0])
		require.NoError(t, err)
		require.Equal(t, memory+16, at)
		require.Len(t, d.imports, 1)
		require.Equal(t, turn, cuda.Calls(dev)["cuIpcCloseMemHandle"])
		// The memory is freed and allocated again. The test says so by another ID.
		moved := map[place]*imported{}
		for of, i := range d.imports {
			of.id += 1000
			moved[of] = i
		}
		d.imports = moved
		clear(other.exports)
	}
	_, err = d.read(1, other.message(list), 2)
	require.ErrorContains(t, err, "rank 1 makes 1 exchanges, this rank 2")
	_, err = d.address(1, piece{id: 77})
	require.ErrorContains(t, err, "rank 1 has sent no handle")
}

// TestSteps checks that ranks in different steps get an error.
func TestSteps(t *testing.T) {
	for _, err := range ranksOf(t, 2, Options{}, func(tr parallel.Transport, _ driver.Device) error {
		_, err := tr.Share(context.Background(), parallel.Step{Phase: "counts", Chunk: tr.Rank()}, nil)
		return errors.Join(err, tr.Close())
	}) {
		require.ErrorContains(t, err, "is in another step: counts")
	}
}
