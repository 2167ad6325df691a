package parallel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"sonicmoe/driver"
	"sonicmoe/moe/parallel/internal/lanes"
)

// Peer is a device whose copies may use the memory of other devices.
type Peer interface {
	// Reach reports whether copies on this device's streams can use memory of the other device. It
	// enables peer access if the driver needs that.
	Reach(other driver.Device) (bool, error)
}

// Local returns the transports of a group within this process, one for each device. Each rank runs
// in a goroutine of its own. A device may be in the list more than once. Rows are copied from
// device to device if all devices can use each other's memory. Else they go through host memory, where a
// receiver cannot read the sender's memory.
func Local(devices ...driver.Device) ([]Transport, error) {
	if len(devices) == 0 {
		return nil, errors.New("a group of no devices: want one device at least")
	}
	h := &hub{reads: make([][]bool, len(devices)), rounds: map[int]*round{}, broken: make(chan struct{})}
	list := make([]Transport, len(devices))
	for i, dev := range devices {
		for j, other := range devices {
			reach, err := reaches(dev, other)
			if err != nil {
				return nil, fmt.Errorf("rank %d and the memory of rank %d: %w", i, j, err)
			}
			h.reads[i] = append(h.reads[i], reach)
		}
	}
	for i, dev := range devices {
		t := &local{hub: h, rank: i, ranks: len(devices)}
		if h.allReach() {
			if err := t.prepare(dev); err != nil {
				return nil, fmt.Errorf("streams and events of rank %d: %w", i, err)
			}
		}
		list[i] = t
	}
	return list, nil
}

// allReach reports whether copies of every rank can read the memory of every other rank.
func (h *hub) allReach() bool {
	for _, reads := range h.reads {
		if slices.Contains(reads, false) {
			return false
		}
	}
	return true
}

// reaches reports whether copies on dev's streams can read memory of the other device.
func reaches(dev, other driver.Device) (bool, error) {
	if dev == other {
		return true, nil
	}
	if p, ok := dev.(Peer); ok {
		return p.Reach(other)
	}
	return false, nil
}

// hub is the state that the ranks of a process share.
type hub struct {
	// reads[i][j] reports whether copies on streams of rank i can read memory of rank j.
	reads [][]bool

	mu     sync.Mutex
	rounds map[int]*round
	cause  error
	broken chan struct{} // closed when cause is set
}

// round is one meeting of all ranks: each rank brings a post, and gets the posts of all ranks. The
// channel full is closed when the last rank has come.
type round struct {
	posts   []*post
	missing int
	full    chan struct{}
}

// post is what a rank brings to a round. words are the words that the rank passed to Share.
type post struct {
	at    Step
	words []int64
	// sent has, for each exchange of Move, the bytes for each rank. room has the place for the bytes of
	// each rank, if all ranks reach each other's memory.
	sent, room [][]piece
	// mark, unless nil, is an event for which other ranks wait on their streams. In the first round of
	// Move it means that other ranks may write to this rank's memory, and in the second that this rank
	// has sent its bytes.
	mark driver.Event
}

// piece is a range of device memory, or a copy of it in host memory.
type piece struct {
	at    driver.DevicePtr
	bytes int64
	host  []byte
}

// local implements Transport.
type local struct {
	*hub
	rank, ranks int
	round       int // the number of rounds that this rank has joined
	// ready and done are the marks of the two rounds of Move. They are nil if some rank cannot read
	// the memory of another rank.
	ready, done driver.Event
	// lanes copy what this rank sends, if all ranks reach each other's memory.
	lanes *lanes.Lanes
}

// prepare makes the events and lanes of a rank.
func (t *local) prepare(dev driver.Device) (err error) {
	for _, e := range []*driver.Event{&t.ready, &t.done} {
		if *e, err = dev.NewEvent(); err != nil {
			return err
		}
	}
	t.lanes, err = lanes.New(dev)
	return err
}

func (t *local) Rank() int  { return t.rank }
func (t *local) Ranks() int { return t.ranks }

// Share implements Transport.
func (t *local) Share(ctx context.Context, at Step, words []int64) ([][]int64, error) {
	posts, err := t.meet(ctx, &post{at: at, words: append([]int64(nil), words...)})
	if err != nil {
		return nil, err
	}
	all := make([][]int64, t.ranks)
	for i, p := range posts {
		if len(p.words) != len(words) {
			return nil, t.fail(at, nil, fmt.Errorf("rank %d shares %d words, this rank %d", i, len(p.words), len(words)))
		}
		all[i] = p.words
	}
	return all, nil
}

// Move implements Transport. If all ranks reach each other's memory, the sender copies, because copies
// that write to another GPU are faster than copies that read from it. The sender must not write before
// the receiver's stream has come to the Move, and the receiver must not go on before all senders have
// written. Streams wait for events of other streams, and the host does not wait for devices. Else the
// receiver copies, and each rank waits for its stream before it meets the others.
func (t *local) Move(ctx context.Context, at Step, s driver.Stream, list ...Exchange) error {
	mine := &post{at: at, sent: make([][]piece, len(list)), mark: t.ready}
	if err := t.reach(ctx, s, mine.mark); err != nil {
		return t.fail(at, nil, err)
	}
	for i, e := range list {
		pieces, err := t.pieces(s, e)
		if err != nil {
			return t.fail(at, nil, err)
		}
		mine.sent[i] = pieces
		if t.lanes != nil {
			mine.room = append(mine.room, room(e))
		}
	}
	posts, err := t.meet(ctx, mine)
	if err != nil {
		return err
	}
	if err := t.waitFor(s, posts); err != nil {
		return t.fail(at, nil, err)
	}
	if err := t.copyAll(s, list, posts); err != nil {
		return t.fail(at, nil, err)
	}
	if err := t.reach(ctx, s, t.done); err != nil {
		return t.fail(at, nil, err)
	}
	if posts, err = t.meet(ctx, &post{at: at, mark: t.done}); err != nil {
		return err
	}
	if err := t.waitFor(s, posts); err != nil {
		return t.fail(at, nil, err)
	}
	return nil
}

// reach records the event when the stream's work so far is done. Without an event it waits for this
// work.
func (t *local) reach(ctx context.Context, s driver.Stream, mark driver.Event) error {
	if mark == nil {
		return s.Synchronize(ctx)
	}
	return mark.Record(s)
}

// waitFor makes later work of the stream wait for the events that the other ranks have posted. An
// event is recorded again only after the next meeting, when all ranks have called this function.
func (t *local) waitFor(s driver.Stream, posts []*post) error {
	for i, p := range posts {
		if i == t.rank || p.mark == nil {
			continue
		}
		if err := s.Wait(p.mark); err != nil {
			return fmt.Errorf("waiting for rank %d: %w", i, err)
		}
	}
	return nil
}

// pieces returns what an exchange sends to each rank. It copies a piece to the host if the receiver
// cannot read this device's memory.
func (t *local) pieces(s driver.Stream, e Exchange) ([]piece, error) {
	list := make([]piece, t.ranks)
	for to, bytes := range e.SendBytes {
		p := piece{at: e.From(to), bytes: bytes}
		if !t.reads[to][t.rank] {
			p.host = make([]byte, bytes)
			if err := s.CopyToHost(p.host, p.at); err != nil {
				return nil, err
			}
		}
		list[to] = p
	}
	return list, nil
}

// room returns the places for the bytes of each rank in an exchange.
func room(e Exchange) (list []piece) {
	for from, bytes := range e.ReceiveBytes {
		list = append(list, piece{at: e.To(from), bytes: bytes})
	}
	return list
}

// copyAll queues the copies of this rank in a Move.
func (t *local) copyAll(s driver.Stream, list []Exchange, posts []*post) error {
	for i, e := range list {
		if err := t.receive(s, e, i, posts); err != nil {
			return err
		}
	}
	if t.lanes == nil {
		return nil
	}
	return t.lanes.Run(s, t.outgoing(list, posts))
}

// receive checks the sizes of what the other ranks send in exchange number i. Unless the senders copy
// their bytes, it copies them.
func (t *local) receive(s driver.Stream, e Exchange, i int, posts []*post) error {
	for from, bytes := range e.ReceiveBytes {
		if len(posts[from].sent) <= i {
			return fmt.Errorf("rank %d makes %d exchanges, this rank more", from, len(posts[from].sent))
		}
		if from == t.rank && e.InPlace {
			continue
		}
		p := posts[from].sent[i][t.rank]
		if p.bytes != bytes {
			return fmt.Errorf("rank %d sends %d bytes, this rank expects %d", from, p.bytes, bytes)
		}
		if bytes == 0 || t.lanes != nil {
			continue
		}
		var err error
		if p.host == nil {
			err = s.Copy(e.To(from), p.at, bytes)
		} else {
			err = s.CopyToDevice(e.To(from), p.host)
		}
		if err != nil {
			return fmt.Errorf("copying %d bytes of rank %d: %w", bytes, from, err)
		}
	}
	return nil
}

// outgoing returns the copies of what this rank sends. If a receiver expects another size, there is no
// copy, and the receiver returns an error.
func (t *local) outgoing(list []Exchange, posts []*post) (copies []lanes.Copy) {
	for i, e := range list {
		for k := range t.ranks {
			to := (t.rank + k) % t.ranks // each rank begins with another receiver
			if bytes := e.SendBytes[to]; bytes > 0 && (to != t.rank || !e.InPlace) && len(posts[to].room) > i {
				if p := posts[to].room[i][t.rank]; p.bytes == bytes {
					copies = append(copies, lanes.Copy{To: p.at, From: e.From(to), Bytes: bytes})
				}
			}
		}
	}
	return copies
}

// meet brings a post to the next round, waits for all ranks, and returns their posts.
func (t *local) meet(ctx context.Context, p *post) ([]*post, error) {
	r := t.bring(p)
	select {
	case <-r.full:
	case <-t.broken:
		return nil, &Error{t.rank, t.ranks, p.at, nil, t.Err()}
	case <-ctx.Done():
		return nil, t.fail(p.at, t.absent(r), ctx.Err())
	}
	for i, other := range r.posts {
		if other.at != p.at {
			return nil, t.fail(p.at, nil, fmt.Errorf("rank %d is in another step: %v", i, other.at))
		}
	}
	return r.posts, nil
}

// bring adds a post to this rank's next round, and returns the round.
func (t *local) bring(p *post) *round {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.rounds[t.round]
	if r == nil {
		r = &round{posts: make([]*post, t.ranks), missing: t.ranks, full: make(chan struct{})}
		t.rounds[t.round] = r
	}
	r.posts[t.rank] = p
	if r.missing--; r.missing == 0 {
		delete(t.rounds, t.round)
		close(r.full)
	}
	t.round++
	return r
}

// absent returns the ranks that have not joined a round.
func (t *local) absent(r *round) (ranks []int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, p := range r.posts {
		if p == nil {
			ranks = append(ranks, i)
		}
	}
	return ranks
}

// fail breaks the group and returns the rank's error.
func (t *local) fail(at Step, missing []int, cause error) error {
	err := &Error{t.rank, t.ranks, at, missing, cause}
	t.Abort(err)
	return err
}

// Err implements Transport.
func (t *local) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cause
}

// Abort implements Transport.
func (t *local) Abort(cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cause == nil {
		t.cause = cause
		close(t.broken)
	}
}

// Close implements Transport.
func (t *local) Close() error {
	if t.ready == nil {
		return nil
	}
	return errors.Join(t.ready.Close(), t.done.Close(), t.lanes.Close())
}
