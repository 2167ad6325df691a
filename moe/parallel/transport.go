package parallel

import (
	"context"
	"fmt"
	"strings"

	"sonicmoe/driver"
)

// Transport moves numbers and rows between the ranks of a group. Every rank has its own, and
// all ranks make the same calls in the same order. One goroutine at a time uses a transport,
// except for Abort. [Local] is the transport within a process.
//
// A call that fails breaks the group: the error is an *Error, and the calls of all ranks
// return errors from then on.
type Transport interface {
	// Rank is the number of this rank, Ranks the number of ranks.
	Rank() int
	Ranks() int
	// Share gives the words of every rank to every rank: the result has a row for each rank.
	// All ranks share the same number of words. With none it is a barrier.
	Share(ctx context.Context, at Step, words []int64) ([][]int64, error)
	// Move makes all-to-all exchanges of device memory. It may queue them on the stream, and
	// later work of the stream sees what has arrived. What was sent may be overwritten by
	// later work of the stream.
	Move(ctx context.Context, at Step, s driver.Stream, list ...Exchange) error
	// Abort makes the calls of all ranks return errors with this cause, and ends exchanges that
	// are queued.
	Abort(cause error)
	// Err returns the cause of a broken group, nil while the group is whole.
	Err() error
	// Close ends the use of the transport.
	Close() error
}

// Exchange is an all-to-all exchange of device memory. Both ends know its sizes.
type Exchange struct {
	// Send has the bytes for each rank, by rank, without gaps. Receive gets the bytes of each
	// rank in the same way.
	Send, Receive driver.DevicePtr
	// SendBytes and ReceiveBytes have a size for each rank.
	SendBytes, ReceiveBytes []int64
	// Same means that every rank gets the same bytes: Send has them once.
	Same bool
	// InPlace means that the rank's own bytes are at their place in Receive already.
	InPlace bool
}

// From returns the address of the bytes for a rank.
func (e *Exchange) From(rank int) driver.DevicePtr {
	if e.Same {
		return e.Send
	}
	return after(e.Send, e.SendBytes[:rank])
}

// To returns the address for the bytes of a rank.
func (e *Exchange) To(rank int) driver.DevicePtr { return after(e.Receive, e.ReceiveBytes[:rank]) }

// after returns the address behind some bytes.
func after(p driver.DevicePtr, bytes []int64) driver.DevicePtr {
	return p + driver.DevicePtr(sum(bytes))
}

// Step is a step of a pass, for errors.
type Step struct {
	// Phase is "join", "counts", "dispatch", "return" or "wait"; in a backward pass
	// "wanted", "scores", "logits", "router" and "partials" too.
	Phase string
	// Chunk numbers the parts of a phase that are exchanged one by one, from 0.
	Chunk int
}

// String returns "dispatch, chunk 0".
func (s Step) String() string { return fmt.Sprintf("%s, chunk %d", s.Phase, s.Chunk) }

// Error is the failure of a rank of a group.
type Error struct {
	// Rank of Ranks ranks reports the failure, in Step.
	Rank, Ranks int
	Step        Step
	// Missing are the ranks that did not come before the deadline.
	Missing []int
	// Cause is the reason.
	Cause error
}

// Error implements error: "rank 1 of 4: dispatch, chunk 0: waiting for rank 2: …".
func (e *Error) Error() string {
	text := fmt.Sprintf("rank %d of %d: %v: ", e.Rank, e.Ranks, e.Step)
	if len(e.Missing) > 0 {
		names := strings.Trim(strings.ReplaceAll(fmt.Sprint(e.Missing), " ", ", "), "[]")
		text += "waiting for rank " + names + ": "
	}
	return text + e.Cause.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }
