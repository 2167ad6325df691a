package parallel_test

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/moe"
	"sonicmoe/moe/parallel"
)

// This example runs both passes of a training step over two ranks, each on an emulated device. Rank 0 has one token
// and experts 0 and 1. Rank 1 has two tokens and experts 2 and 3. On GPUs each rank is usually a process, and its
// transport is from nccl.Connect.
//
// All tokens choose experts 3 and 2. A calculation by hand: gate and up are 1/16, so A = silu(1/16)/16 = 0.00201. O is
// 64/16·A = 0.00806, because scores add up to 1. dO is 1, and the score of expert 3 is e/(e+1) = 0.731. The gradient
// of its W2 is the sum over the three tokens of both ranks, 3·0.731·A = 0.0044.
func Example() {
	var devices []driver.Device
	for range 2 {
		dev, err := emulated.New(emulated.Options{})
		if err != nil {
			fmt.Println(err)
			return
		}
		defer dev.Close()
		devices = append(devices, dev)
	}
	transports, err := parallel.Local(devices...)
	if err != nil {
		fmt.Println(err)
		return
	}
	var group errgroup.Group
	lines := make([]string, len(devices))
	for i, dev := range devices {
		group.Go(func() (err error) {
			lines[i], err = step(dev, transports[i], i+1)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(lines[0])
	fmt.Println(lines[1])
	// Output:
	// rank 0: experts 0 to 1 got 0 pairs, O 0.0081, DW2 0.0000
	// rank 1: experts 2 to 3 got 6 pairs, O 0.0081, DW2 0.0044
}

// step runs both passes of a rank with a number of tokens.
func step(dev driver.Device, t parallel.Transport, tokens int) (line string, err error) {
	ctx := context.Background()
	r, err := parallel.Join(ctx, dev, t, parallel.Options{
		Config:    moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2},
		MaxTokens: 2, Layer: []moe.Option{moe.WithoutCache()},
	})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	stream, err := dev.NewStream()
	if err != nil {
		return "", err
	}
	defer stream.Close()
	sizes, err := r.Sizes()
	if err != nil {
		return "", err
	}
	memory := moe.NewArena(dev)
	defer memory.Free()
	of := r.Config.Shapes(tokens)
	a := parallel.Args{X: memory.Tensor(of.X), Scores: memory.Tensor(of.Scores), ExpertIDs: memory.Tensor(of.ExpertIDs), O: memory.Tensor(of.O),
		Saved: &parallel.Saved{Buffer: memory.Buffer(sizes.Saved)}, Workspace: memory.Buffer(max(sizes.Workspace, sizes.BackwardWorkspace))}
	b := parallel.BackwardArgs{X: a.X, Scores: a.Scores, ExpertIDs: a.ExpertIDs, Saved: a.Saved, DO: memory.Tensor(of.O), DX: memory.Tensor(of.X), Workspace: a.Workspace}
	for id, shape := range r.WeightShapes() { // the whole router, and this rank's experts
		w := memory.Tensor(shape)
		*a.Weight(id), *b.Weight(id), b.Gradient(id).Tensor = w, w, memory.Tensor(shape)
	}
	o, dw2 := make([]float32, a.O.Shape.Elements()), make([]float32, b.DW2.Shape.Elements())
	err = errors.Join(
		memory.Err(), fill(stream, a, b.DO),
		r.Forward(ctx, stream, a), r.Backward(ctx, stream, b), r.Wait(ctx, stream),
		moe.Read(stream, a.O, o), moe.Read(stream, b.DW2.Tensor, dw2))
	first, count := r.Experts()
	last := len(dw2) - 1 // an element of the gradient of the last expert's W2
	return fmt.Sprintf("rank %d: experts %d to %d got %d pairs, O %.4f, DW2 %.4f", t.Rank(), first, first+count-1, r.Traffic().Pairs, o[0], dw2[last]), err
}

// fill fills in tokens, weights and dO. Only the first element of a token is not 0, and expert e has the logit e.
func fill(stream driver.Stream, a parallel.Args, do moe.Tensor) error {
	err := errors.Join(stream.Fill32(a.X.Ptr, 0, a.X.Shape.Bytes()/4), stream.Fill32(a.Router.Ptr, 0, a.Router.Shape.Bytes()/4))
	const one, both = 0x3f80, 0x10001 // 1 in bf16, and a factor that puts a number in both halves of a word
	row := driver.DevicePtr(a.Router.Shape.Bytes() / a.Router.Shape.Dims[0])
	for t := range driver.DevicePtr(a.X.Shape.Dims[0]) {
		err = errors.Join(err, stream.Fill32(a.X.Ptr+t*row, one, 1))
	}
	for e, bits := range []uint32{0, 0x3f80, 0x4000, 0x4040} { // 0 to 3 in bf16
		err = errors.Join(err, stream.Fill32(a.Router.Ptr+driver.DevicePtr(e)*row, bits, 1))
	}
	for _, w := range []moe.Tensor{a.W1, a.W2} {
		err = errors.Join(err, stream.Fill32(w.Ptr, 0x3d80*both, w.Shape.Bytes()/4)) // 1/16
	}
	return errors.Join(err, stream.Fill32(do.Ptr, one*both, do.Shape.Bytes()/4))
}
