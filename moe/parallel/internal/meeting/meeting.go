// Package meeting brings the ranks of a group together by TCP connections to rank 0, which listens
// at an address. The connections stay open. If a rank ends or breaks the group, all other ranks
// learn the reason at once, which names the rank.
package meeting

import (
	"bufio"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Options say which rank this is, and where rank 0 listens.
type Options struct {
	// Rank is the number of this rank. Ranks is the number of ranks.
	Rank, Ranks int
	// Address is the host and port on which rank 0 listens.
	Address string
	// Token is a word that all ranks of a job know. It keeps ranks of other jobs out.
	Token string
	// Version must be the same on all ranks. An example is "NCCL 2.28.9".
	Version string
}

// Check refuses a rank outside the range of ranks.
func (o Options) Check() error {
	if o.Ranks < 1 || o.Rank < 0 || o.Rank >= o.Ranks {
		return fmt.Errorf("rank %d of %d: want a rank from 0 to below the number of ranks", o.Rank, o.Ranks)
	}
	return nil
}

// Meeting has this rank's connections: rank 0 has a connection to every other rank. Each message is
// a line of JSON.
type Meeting struct {
	Options
	// ID is equal on all ranks: bytes that rank 0 made and sent to the others, such as NCCL's id of a
	// communicator.
	ID []byte

	mu sync.Mutex
	// links has the connections by the rank at the other end. Rank 0 has links to all other ranks,
	// another rank has a link to rank 0 only.
	links  map[int]*link
	cause  error
	broken chan struct{} // closed when cause is set
	ending bool          // this rank has closed the meeting
}

// Broken returns a channel that is closed when the group breaks.
func (m *Meeting) Broken() <-chan struct{} { return m.broken }

// link is a connection to another rank.
type link struct {
	conn net.Conn
	read *bufio.Reader
	mu   sync.Mutex // guards writes
}

// hello is the first message of a rank to rank 0.
type hello struct {
	Token       string
	Rank, Ranks int
	Version     string
}

// notice is any other message: rank 0's answer to a hello, or the end of a rank.
type notice struct {
	ID []byte `json:",omitempty"`
	// Error is the reason why rank 0 refuses a hello, or why the group is broken.
	Error string `json:",omitempty"`
	// Bye means that the rank has closed its transport without an error.
	Bye bool `json:",omitempty"`
}

func newLink(c net.Conn) *link { return &link{conn: c, read: bufio.NewReader(c)} }

// writeTimeout is the longest time to send a message.
const writeTimeout = 5 * time.Second

func (l *link) send(message any) error {
	line, err := json.Marshal(message)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	_, err = l.conn.Write(append(line, '\n'))
	return err
}

func (l *link) receive(to any) error {
	line, err := l.read.ReadSlice('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(line, to)
}

// Meet brings the ranks together. Rank 0 calls makeID, and all ranks get its result.
func Meet(ctx context.Context, o Options, makeID func() ([]byte, error)) (*Meeting, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	m := &Meeting{Options: o, links: map[int]*link{}, broken: make(chan struct{})}
	own := hello{Token: o.Token, Rank: o.Rank, Ranks: o.Ranks, Version: o.Version}
	var err error
	if o.Rank == 0 {
		if m.ID, err = makeID(); err == nil && o.Ranks > 1 {
			err = m.listen(ctx, own)
		}
	} else {
		err = m.dial(ctx, own)
	}
	if err != nil {
		m.hangUp()
		return nil, fmt.Errorf("rank %d of %d meeting at %s: %w", o.Rank, o.Ranks, o.Address, err)
	}
	for rank, l := range m.links {
		go m.watch(rank, l)
	}
	return m, nil
}

// listen accepts the connections of all other ranks, and then sends them the id.
func (m *Meeting) listen(ctx context.Context, own hello) error {
	var config net.ListenConfig
	server, err := config.Listen(ctx, "tcp", m.Address)
	if err != nil {
		return err
	}
	defer server.Close()
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	for len(m.links) < m.Ranks-1 {
		conn, err := server.Accept()
		if ctx.Err() != nil {
			return fmt.Errorf("waiting for ranks %v: %w", m.absent(), ctx.Err())
		}
		if err != nil {
			return err
		}
		if err := m.admit(ctx, newLink(conn), own); err != nil {
			return err
		}
	}
	for _, l := range m.links {
		if err := l.send(notice{ID: m.ID}); err != nil {
			return err
		}
	}
	return nil
}

// helloTimeout is the longest wait for a hello, so that a silent connection does not stop the
// meeting.
const helloTimeout = 2 * time.Second

// admit reads the hello of a new connection. It closes a connection without the job's token. It
// returns an error if a rank of this job does not fit. This error ends the meeting.
func (m *Meeting) admit(ctx context.Context, l *link, own hello) error {
	var h hello
	until := time.Now().Add(helloTimeout)
	if end, ok := ctx.Deadline(); ok && end.Before(until) {
		until = end
	}
	err := l.conn.SetReadDeadline(until)
	if err == nil {
		err = l.receive(&h)
	}
	if err != nil || subtle.ConstantTimeCompare([]byte(h.Token), []byte(own.Token)) != 1 {
		_ = l.send(notice{Error: "this job has another token"}) // the other end may be gone already
		return l.conn.Close()
	}
	switch {
	case h.Ranks != own.Ranks:
		err = fmt.Errorf("rank %d has %d ranks, rank 0 has %d", h.Rank, h.Ranks, own.Ranks)
	case h.Version != own.Version:
		err = fmt.Errorf("rank %d has %s, rank 0 has %s", h.Rank, h.Version, own.Version)
	case h.Rank < 1 || h.Rank >= own.Ranks || m.links[h.Rank] != nil:
		err = fmt.Errorf("rank %d has come twice, or is none of %d ranks", h.Rank, own.Ranks)
	}
	if err != nil {
		for _, other := range append(m.all(), l) {
			_ = other.send(notice{Error: err.Error()})
		}
		return errors.Join(err, l.conn.Close())
	}
	m.links[h.Rank] = l
	return l.conn.SetReadDeadline(time.Time{})
}

// dial connects to rank 0 and waits for the id. It tries again until rank 0 listens.
func (m *Meeting) dial(ctx context.Context, own hello) error {
	var d net.Dialer
	for {
		conn, err := d.DialContext(ctx, "tcp", m.Address)
		if err == nil {
			m.links[0] = newLink(conn)
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for rank 0: %w (%w)", ctx.Err(), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
	l := m.links[0]
	stop := context.AfterFunc(ctx, func() { _ = l.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := l.send(own); err != nil {
		return err
	}
	var answer notice
	if err := l.receive(&answer); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return fmt.Errorf("waiting for the other ranks: %w", err)
	}
	if answer.Error != "" {
		return errors.New(answer.Error)
	}
	m.ID = answer.ID
	return nil
}

// absent returns the ranks that have not come to rank 0.
func (m *Meeting) absent() (ranks []int) {
	for rank := 1; rank < m.Ranks; rank++ {
		if m.links[rank] == nil {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// watch reads a link until its end, and aborts if the other rank is gone or reports an error. On
// rank 0 this also notifies the other ranks.
func (m *Meeting) watch(rank int, l *link) {
	for {
		var n notice
		err := l.receive(&n)
		switch {
		case err != nil:
			m.Abort(fmt.Errorf("rank %d is gone: %w", rank, err))
		case n.Error != "":
			m.Abort(errors.New(n.Error))
		case n.Bye && rank == 0:
			// Rank 0 has closed its transport. Another rank closes its own, too, or gets an error
			// when it moves bytes.
		case !n.Bye:
			continue
		}
		return
	}
}

// Abort breaks the group and sends the cause to the linked ranks.
func (m *Meeting) Abort(cause error) {
	m.mu.Lock()
	first := m.cause == nil && !m.ending
	if first {
		m.cause = cause
		close(m.broken)
	}
	m.mu.Unlock()
	if first {
		for _, l := range m.all() {
			_ = l.send(notice{Error: cause.Error()}) // fails if the rank is gone already
		}
	}
}

// Err returns the cause of a broken group, or nil.
func (m *Meeting) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cause
}

func (m *Meeting) all() []*link {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []*link
	for _, l := range m.links {
		list = append(list, l)
	}
	return list
}

// Close ends this rank's part in the meeting, without breaking the group. If the group is broken, it
// sends the cause again: Abort, in another goroutine, may not have sent it before the connections end.
func (m *Meeting) Close() {
	m.mu.Lock()
	m.ending = true
	last := notice{Bye: m.cause == nil}
	if m.cause != nil {
		last.Error = m.cause.Error()
	}
	m.mu.Unlock()
	for _, l := range m.all() {
		_ = l.send(last)
	}
	m.hangUp()
}

// Drop closes the connections without a message, like a process that was killed. It is for tests.
func (m *Meeting) Drop() {
	m.mu.Lock()
	m.ending = true
	m.mu.Unlock()
	m.hangUp()
}

func (m *Meeting) hangUp() {
	for _, l := range m.all() {
		_ = l.conn.Close()
	}
}
