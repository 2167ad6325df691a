//go:build cgo

package main

// #include <stdlib.h>
// #define SONICMOE_TYPES_ONLY
// #include "exchange.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
	"sonicmoe/moe/parallel"
	"sonicmoe/moe/parallel/hosted"
	"sonicmoe/moe/parallel/nccl"
)

// rank is one rank of a group. A rank runs one pass at a time.
type rank struct {
	*parallel.Rank
	transport parallel.Transport
	dev       driver.Device
	shapes    map[moe.TensorID]moe.Shape
	counts    int // number of words of counts
	allocate  C.sm_allocate
	given     unsafe.Pointer // the first argument of allocate
	lock      sync.Mutex
	stop      *atomic.Int32 // C memory: not 0 when an exchange must end
}

func (*rank) String() string { return "rank" }

// errExchange is the error of an exchange that the program's function could not make.
var errExchange = errors.New("the program's exchange of bytes failed")

// Close ends the rank's part in its group.
func (r *rank) Close() error {
	r.lock.Lock()
	defer r.lock.Unlock()
	err := r.Rank.Close()
	if end := r.transport.Close(); err == nil {
		err = end
	}
	C.free(unsafe.Pointer(r.stop))
	return err
}

//export sm_go_join
func sm_go_join(dev C.sm_handle, config *C.sm_config, joining *C.sm_joining, out *C.sm_handle) C.sm_status {
	return using(dev, func(d *device) error {
		j, err := read("joining", joining)
		if err != nil {
			return err
		}
		if out == nil || j.address == nil || j.token == nil {
			return &moe.ArgError{Field: "joining->address, joining->token or rank", Got: "NULL", Want: "an address"}
		}
		c, opts, err := configOf(config)
		if err != nil {
			return err
		}
		r := &rank{dev: d.Device, stop: (*atomic.Int32)(C.calloc(1, 8)), allocate: j.allocate, given: j.context}
		if err := r.join(&j, c, opts); err != nil {
			C.free(unsafe.Pointer(r.stop))
			return err
		}
		*out = keep(r)
		return nil
	})
}

// join meets the other ranks and makes the rank's layers.
func (r *rank) join(j *C.sm_joining, c moe.Config, opts []moe.Option) error {
	o := parallel.Options{
		Config: c, MaxTokens: int(j.max_tokens), Chunks: int(j.chunks), PartialSums: j.partial_sums != 0, Deadline: time.Duration(j.deadline_ms) * time.Millisecond,
		Layer: append(opts, withBundles()),
	}
	if o.Deadline <= 0 {
		o.Deadline = time.Minute
	}
	ctx, cancel := context.WithTimeout(context.Background(), o.Deadline)
	defer cancel()
	var err error
	if r.transport, err = r.connect(ctx, j); err != nil {
		return err
	}
	if r.Rank, err = parallel.Join(ctx, r.dev, r.transport, o); err == nil {
		var s parallel.Sizes
		s, err = r.Sizes()
		r.shapes, r.counts = r.WeightShapes(), s.SavedCounts
	}
	if err != nil {
		_ = r.transport.Close() // err is the reason
	}
	return err
}

// connect makes the transport: the program's function moves the bytes, or NCCL.
func (r *rank) connect(ctx context.Context, j *C.sm_joining) (parallel.Transport, error) {
	address, token := C.GoString(j.address), C.GoString(j.token)
	if j.exchange == nil {
		return nccl.Connect(ctx, r.dev, nccl.Options{Rank: int(j.rank), Ranks: int(j.ranks), Address: address, Token: token})
	}
	exchange, given := j.exchange, j.context
	return hosted.Connect(ctx, hosted.Options{Rank: int(j.rank), Ranks: int(j.ranks), Address: address, Token: token,
		Exchange: func(ctx context.Context, send []byte, sendBytes []int64, receive []byte, receiveBytes []int64) error {
			// After an exchange that was stopped the group is broken, so stop is never set back.
			defer context.AfterFunc(ctx, func() { r.stop.Store(1) })()
			status := C.sm_call_exchange(exchange, given, unsafe.Pointer(unsafe.SliceData(send)), (*C.int64_t)(&sendBytes[0]),
				unsafe.Pointer(unsafe.SliceData(receive)), (*C.int64_t)(&receiveBytes[0]), (*C.int32_t)(unsafe.Pointer(r.stop)))
			if status != 0 {
				return errExchange
			}
			return nil
		}})
}

//export sm_go_rank_sizes
func sm_go_rank_sizes(of C.sm_handle, out *C.sm_rank_sizes_of) C.sm_status {
	return using(of, func(r *rank) error {
		s, err := r.Sizes()
		if err != nil {
			return err
		}
		first, count := r.Experts()
		return write("sizes", out, C.sm_rank_sizes_of{
			workspace: C.int64_t(s.Workspace), backward_workspace: C.int64_t(s.BackwardWorkspace), saved: C.int64_t(s.Saved), counts: C.int64_t(s.SavedCounts),
			first_expert: C.int64_t(first), experts: C.int64_t(count),
		})
	})
}

// run calls pass while no other pass of the rank runs.
func (r *rank) run(stream C.uint64_t, pass func(ctx context.Context, s driver.Stream) error) error {
	r.lock.Lock()
	defer r.lock.Unlock()
	return pass(context.Background(), r.dev.WrapStream(uintptr(stream)))
}

//export sm_go_rank_forward
func sm_go_rank_forward(of C.sm_handle, pass *C.sm_forward_pass, counts *C.int64_t) C.sm_status {
	return rankForward(of, pass, counts, (*parallel.Rank).Forward)
}

//export sm_go_rank_experts
func sm_go_rank_experts(of C.sm_handle, pass *C.sm_forward_pass, counts *C.int64_t) C.sm_status {
	return rankForward(of, pass, counts, (*parallel.Rank).ForwardExperts)
}

// rankForward queues one of the forward passes of a rank.
func rankForward(of C.sm_handle, pass *C.sm_forward_pass, counts *C.int64_t, which func(*parallel.Rank, context.Context, driver.Stream, parallel.Args) error) C.sm_status {
	return using(of, func(r *rank) error {
		p, err := read("pass", pass)
		if err != nil {
			return err
		}
		if p.entries != 0 || p.units != 0 {
			return &moe.ArgError{Field: "pass->entries or pass->units", Got: "not 0", Want: "0 in a pass of a rank"}
		}
		s := r.Config.Shapes(int(p.tokens))
		a := parallel.Args{
			X: tensor(p.x, s.X), Scores: tensor(p.scores, s.Scores), ExpertIDs: tensor(p.expert_ids, s.ExpertIDs), Logits: optional(p.logits, s.Logits),
			O: tensor(p.o, s.O), Workspace: moe.Buffer{Ptr: driver.DevicePtr(p.workspace), Bytes: int64(p.workspace_bytes)},
		}
		for _, id := range spec.Weights {
			*a.Weight(id) = weight(forwardWeight(&p, id), r.shapes[id])
		}
		if p.h != 0 {
			if counts == nil {
				return &moe.ArgError{Field: "counts", Got: "NULL", Want: "an address, because pass->h is one"}
			}
			sizes, err := r.Sizes()
			if err != nil {
				return err
			}
			a.Saved = &parallel.Saved{Buffer: moe.Buffer{Ptr: driver.DevicePtr(p.h), Bytes: sizes.Saved}}
		}
		if p.h == C.SM_ALLOCATE {
			if r.allocate == nil {
				return &moe.ArgError{Field: "pass->h", Got: "SM_ALLOCATE", Want: "an address: the rank joined without allocate"}
			}
			a.Saved = &parallel.Saved{Allocate: r.allocated}
		}
		err = r.run(p.stream, func(ctx context.Context, s driver.Stream) error { return which(r.Rank, ctx, s, a) })
		if err == nil && a.Saved != nil {
			copy(unsafe.Slice((*int64)(counts), r.counts), a.Saved.Counts())
		}
		return err
	})
}

// allocated calls the program's function.
func (r *rank) allocated(bytes int64) (moe.Buffer, error) {
	p := C.sm_call_allocate(r.allocate, r.given, C.int64_t(bytes))
	if p == 0 {
		return moe.Buffer{}, errors.New("the program's function failed")
	}
	return moe.Buffer{Ptr: driver.DevicePtr(p), Bytes: bytes}, nil
}

//export sm_go_rank_backward
func sm_go_rank_backward(of C.sm_handle, pass *C.sm_backward_pass, counts *C.int64_t) C.sm_status {
	return using(of, func(r *rank) error {
		p, err := read("pass", pass)
		if err != nil {
			return err
		}
		switch {
		case counts == nil:
			return &moe.ArgError{Field: "counts", Got: "NULL", Want: "the counts of the forward pass"}
		case p.entries != 0:
			return &moe.ArgError{Field: "pass->entries", Got: fmt.Sprint(p.entries), Want: "0 in a pass of a rank"}
		}
		a, err := r.backwardArgs(&p, unsafe.Slice((*int64)(counts), r.counts))
		if err != nil {
			return err
		}
		return r.run(p.stream, func(ctx context.Context, s driver.Stream) error { return r.Backward(ctx, s, a) })
	})
}

// backwardArgs returns the buffers of a backward pass.
func (r *rank) backwardArgs(p *C.sm_backward_pass, counts []int64) (a parallel.BackwardArgs, err error) {
	sizes, err := r.Sizes()
	if err != nil {
		return a, err
	}
	saved, err := r.Restore(moe.Buffer{Ptr: driver.DevicePtr(p.h), Bytes: sizes.Saved}, counts)
	if err != nil {
		return a, err
	}
	s, g := r.Config.Shapes(int(p.tokens)), r.Config.Gradients(int(p.tokens), r.Config.Type)
	a = parallel.BackwardArgs{
		X: tensor(p.x, s.X), Scores: tensor(p.scores, s.Scores), ExpertIDs: tensor(p.expert_ids, s.ExpertIDs), Logits: optional(p.logits, s.Logits),
		Losses: losses(p, &g), Saved: saved, DO: tensor(p.d_o, g.DO), DX: optional(p.dx, g.DX), DScores: optional(p.d_scores, g.DScores),
		Workspace: moe.Buffer{Ptr: driver.DevicePtr(p.workspace), Bytes: int64(p.workspace_bytes)},
	}
	for _, id := range spec.Weights {
		*a.Weight(id) = weight(backwardWeight(p, id), r.shapes[id])
		if d := a.Gradient(id); d != nil {
			*d = gradient(&err, spec.Row(id).GradientID.String(), backwardGradient(p, id), r.shapes[id])
		}
	}
	return a, err
}

//export sm_go_rank_wait
func sm_go_rank_wait(of C.sm_handle, stream C.uint64_t) C.sm_status {
	return using(of, func(r *rank) error {
		return r.run(stream, func(ctx context.Context, s driver.Stream) error { return r.Wait(ctx, s) })
	})
}
