// Command outside runs a layer from a module of its own, as yours would be:
// look at go.mod, whose replace line says where sonicmoe lies, and at the
// imports, none of which is more than the library's own packages.
//
// The idea: a layer is made once and runs many times. moe.New compiles; a
// Forward only queues kernels on a stream, with buffers that the caller owns.
//
//	go run .
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"

	"sonicmoe/driver"
	"sonicmoe/driver/open"
	"sonicmoe/moe"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "outside:", err)
		os.Exit(1)
	}
}

const (
	tokens  = 5
	d, n    = 128, 64 // hidden and intermediate size
	experts = 4
	topK    = 2
)

func run(ctx context.Context) error {
	dev, err := open.Device(ctx, "emulated") // or "cuda"
	if err != nil {
		return err
	}
	defer dev.Close()
	layer, err := moe.New(ctx, dev, moe.Config{Hidden: d, Intermediate: n, Experts: experts, TopK: topK})
	if err != nil {
		return err
	}
	stream, err := dev.NewStream()
	if err != nil {
		return err
	}
	defer stream.Close()

	m := memory{dev: dev, stream: stream}
	f := moe.Forward{
		X:       m.tensor(1, moe.BF16, tokens, d),
		Router:  m.tensor(0.5, moe.BF16, experts, d),
		W1:      m.tensor(1./d, moe.BF16, experts, 2*n, d),
		W2:      m.tensor(2./n, moe.BF16, experts, d, n),
		O:       m.tensor(math.NaN(), moe.BF16, tokens, d),
		Scores:  m.tensor(math.NaN(), moe.F32, tokens, topK),
		Experts: m.tensor(math.NaN(), moe.I32, tokens, topK),
	}
	f.Workspace.Bytes = layer.Sizes(tokens).Workspace
	f.Workspace.Ptr = m.alloc(f.Workspace.Bytes)
	if m.err != nil {
		return m.err
	}
	if err := layer.NewCall().Forward(stream, f); err != nil {
		return err
	}
	o := make([]byte, f.O.Shape.Bytes())
	if err := stream.CopyToHost(o, f.O.Ptr); err != nil { // waits for the pass
		return err
	}

	// Gate and up are d times 1/d, so A is silu(1), and O is n times 2/n of it,
	// whichever experts the router chose: their scores add up to 1.
	want := 2 / (1 + math.Exp(-1))
	for i := 0; i < len(o); i += 2 {
		got := float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(o[i:])) << 16))
		if e := math.Abs(got - want); !(e <= want/64) { // A, Y and O are bf16
			return fmt.Errorf("O[%d] is %v, must be %v", i/2, got, want)
		}
	}
	fmt.Printf("%s: T=%d %v, every O is %.3f within bf16\n", dev.Target().Name, tokens, layer.Config(), want)
	return nil
}

// memory makes buffers and keeps its first error.
type memory struct {
	dev    driver.Device
	stream driver.Stream
	err    error
}

func (m *memory) alloc(bytes int64) (p driver.DevicePtr) {
	if m.err == nil {
		p, m.err = m.dev.Alloc(bytes)
	}
	return p
}

// tensor makes a tensor whose every 16 bits are value as bf16.
func (m *memory) tensor(value float64, kind moe.Type, dims ...int) moe.Tensor {
	bytes := moe.Dense(0, kind, dims...).Shape.Bytes()
	p := m.alloc(bytes)
	if m.err == nil {
		bits := math.Float32bits(float32(value)) >> 16 // exact for these values
		m.err = m.stream.Fill32(p, bits<<16|bits, bytes/4)
	}
	return moe.Dense(p, kind, dims...)
}
