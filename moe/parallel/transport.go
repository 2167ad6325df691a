package parallel

import (
	"context"
	"fmt"
	"strings"

	"sonicmoe/driver"
)

// Transport moves numbers and rows between the ranks of a group. Every rank has its own transport,
// and all ranks make the same calls in the same order. Only one goroutine at a time may use a
// transport, but any may call Abort. [Local] is the transport within a process.
//
// A call that fails breaks the group: it returns an *Error, and from then on the calls of all ranks
// return errors.
type Transport interface {
	// Rank is the number of this rank. Ranks is the number of ranks.
	Rank() int
	Ranks() int
	// Share gives the words of every rank to every rank: element i of the result has the words of
	// rank i. All ranks share the same number of words. With 0 words Share is a barrier.
	Share(ctx context.Context, at Step, words []int64) ([][]int64, error)
	// Move runs all-to-all exchanges of device memory. It may only queue them on the stream. Later
	// work of the stream sees the received bytes, and may overwrite the sent bytes.
	Move(ctx context.Context, at Step, s driver.Stream, list ...Exchange) error
	// Abort makes the calls of all ranks return errors with this cause, and ends queued exchanges.
	Abort(cause error)
	// Err returns the cause of a broken group. It is nil as long as the group is not broken.
	Err() error
	// Close releases the transport.
	Close() error
}

// Exchange is an all-to-all exchange of device memory. Sender and receiver both know the sizes.
type Exchange struct {
	// Send has the bytes to send, ordered by receiving rank. Receive gets the received bytes,
	// ordered by sending rank.
	Send, Receive driver.DevicePtr
	// SendBytes has the number of bytes for each rank. ReceiveBytes has the number of bytes from
	// each rank.
	SendBytes, ReceiveBytes []int64
	// Same means that every rank gets the same bytes. Send then has these bytes once.
	Same bool
	// SendAt and ReceiveAt, unless nil, have the offset in bytes of each rank's part, which may
	// leave gaps between the parts.
	SendAt, ReceiveAt []int64
	// InPlace means that the transport does not move the bytes from this rank to itself.
	InPlace bool
}

// From returns the address in Send of the bytes for a rank.
func (e *Exchange) From(rank int) driver.DevicePtr {
	switch {
	case e.Same:
		return e.Send
	case e.SendAt != nil:
		return e.Send + driver.DevicePtr(e.SendAt[rank])
	}
	return after(e.Send, e.SendBytes[:rank])
}

// To returns the address in Receive where the bytes from a rank go.
func (e *Exchange) To(rank int) driver.DevicePtr {
	if e.ReceiveAt != nil {
		return e.Receive + driver.DevicePtr(e.ReceiveAt[rank])
	}
	return after(e.Receive, e.ReceiveBytes[:rank])
}

// after returns the address that follows a sequence of parts. The parts begin at address p and have
// the given sizes.
func after(p driver.DevicePtr, bytes []int64) driver.DevicePtr {
	return p + driver.DevicePtr(sum(bytes))
}

// Step names a step of a pass in errors.
type Step struct {
	// Phase is "join", "counts", "dispatch", "return" or "wait". A backward pass also has "wanted",
	// "shared experts", "shared gate", "losses", "scores", "logits", "router", "partials", "biases", "router
	// bias" and "expert scales". A phase that moves several things adds which one it moves, such as
	// "router, tokens".
	Phase string
	// Chunk is the number, from 0, of the chunk whose rows go home, or of the group of ranks whose
	// tokens arrive in phase "dispatch". It is 0 in other phases.
	Chunk int
}

// moving returns the step of an exchange of a phase that has several, or also has other work.
func (s Step) moving(what string) Step {
	s.Phase += ", " + what
	return s
}

// String returns "dispatch", "dispatch, chunk 1" for a later group, or "return, chunk 0".
func (s Step) String() string {
	if s.Phase != "return" && s.Chunk == 0 {
		return s.Phase
	}
	return fmt.Sprintf("%s, chunk %d", s.Phase, s.Chunk)
}

// Error is the failure of a rank of a group.
type Error struct {
	// Rank is the rank that reports the failure. Ranks is the number of ranks, and Step is the step
	// that failed.
	Rank, Ranks int
	Step        Step
	// Missing are the ranks that did not come to the step before the deadline.
	Missing []int
	// Cause is the reason.
	Cause error
}

// Error implements error: "rank 1 of 4: dispatch: waiting for rank 2: …".
func (e *Error) Error() string {
	text := fmt.Sprintf("rank %d of %d: %v: ", e.Rank, e.Ranks, e.Step)
	if len(e.Missing) > 0 {
		ranks := "rank "
		if len(e.Missing) > 1 {
			ranks = "ranks "
		}
		text += "waiting for " + ranks + strings.Trim(strings.ReplaceAll(fmt.Sprint(e.Missing), " ", ", "), "[]") + ": "
	}
	return text + e.Cause.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }
