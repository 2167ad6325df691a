// Command train trains a small language model whose blocks are MoE layers.
//
//	train [-device cuda|cuda:N|emulated|reference] [-size tiny|small|large] [-steps N]
//	      [-freeze] [-balance WEIGHT] [-rate RATE] [-plot NAME.png] [-sample BYTES]
//	      [-seed N] [-cache DIR|off]
//
// The model predicts the next byte of the Queries of Newton's Opticks from a
// window of those before it. Each block is x + MoE(RMSnorm(x)); the MoE layer
// and its optimizer run on the device, the rest (embedding, norms, output
// product, cross entropy) on the host in float64. There is no attention: the
// window's bytes are summed, each with a vector for its symbol and distance.
//
// A tenth of the text is held out, and the loss on it printed beside that of
// the steps' own batches.
//
// -device reference runs the MoE layer in float64 on the host too: slow, and
// what the device's loss is to be compared with. -freeze leaves the experts as
// they began, to show what they are worth.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"time"

	"sonicmoe/cache"
	"sonicmoe/examples/internal/picture"
	"sonicmoe/examples/internal/rung"
	"sonicmoe/jit"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "train:", err)
		}
		os.Exit(1)
	}
}

// onHost is the device name of the float64 reference.
const onHost = "reference"

// options are the command line.
type options struct {
	device, size, plot, cache string
	steps, sample             int
	freeze                    bool
	balance, rate             float64
	seed                      uint64
}

func parse(args []string, stderr io.Writer) (o options, s size, err error) {
	f := flag.NewFlagSet("train", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.device, "device", "", "cuda, cuda:N, emulated or reference; empty: a GPU, else the emulated device")
	f.StringVar(&o.size, "size", "", "tiny, small or large; empty: large on a GPU, else tiny")
	f.IntVar(&o.steps, "steps", 0, "steps, 0 for those of the size")
	f.BoolVar(&o.freeze, "freeze", false, "leave the experts' weights as they began")
	f.Float64Var(&o.balance, "balance", 0.01, "weight of the load-balancing loss, 0 for none")
	f.Float64Var(&o.rate, "rate", 0, "largest learning rate, 0 for that of the size")
	f.IntVar(&o.sample, "sample", 100, "bytes to write at the end")
	f.StringVar(&o.plot, "plot", "", "write the loss curve to this .png or .svg file")
	f.Uint64Var(&o.seed, "seed", 1, "of weights and batches")
	f.StringVar(&o.cache, "cache", "", "directory for compiled kernels, or off (default: the user's)")
	if err = f.Parse(args); err != nil {
		return o, s, err
	}
	switch {
	case f.NArg() > 0:
		return o, s, fmt.Errorf("%q is no flag, all arguments are", f.Arg(0))
	case o.steps < 0:
		return o, s, fmt.Errorf("-steps is %d, must be at least 0", o.steps)
	case o.sample < 0:
		return o, s, fmt.Errorf("-sample is %d, must be at least 0", o.sample)
	case !(o.rate >= 0) || math.IsInf(o.rate, 1):
		return o, s, fmt.Errorf("-rate is %v, must be a number from 0", o.rate)
	case !(o.balance >= 0) || math.IsInf(o.balance, 1):
		return o, s, fmt.Errorf("-balance is %v, must be a number from 0", o.balance)
	}
	if o.size != "" {
		if s, err = findSize(o.size); err != nil {
			return o, s, err
		}
	}
	if o.plot != "" {
		err = picture.Check(o.plot)
	}
	return o, s, err
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, s, err := parse(args, stderr)
	if err != nil {
		return err
	}
	began := time.Now()
	closing := func(close func() error) { err = errors.Join(err, close()) }
	create, where := makeExperts(nil), "float64 on the host"
	if o.device == onHost {
		s = s.or("tiny")
		create = newHostExperts(s.layer, o.freeze)
	} else {
		dev, gpu, err := rung.OpenDevice(ctx, o.device, stderr)
		if err != nil {
			return err
		}
		defer closing(dev.Close)
		defer jit.Forget(dev)
		if s = s.or("tiny"); gpu && o.size == "" {
			s, _ = findSize("large") // is there
		}
		logger := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
		d, err := newDevice(ctx, dev, s.layer, s.tokens, o.freeze, cache.Open(cache.Options{Dir: o.cache, Logger: logger}))
		if err != nil {
			return err
		}
		defer closing(d.Close)
		create, where = d.newExperts, dev.Target().Name
	}
	t, err := newTraining(s, o, create, stdout)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s: %d blocks of %v, %.3g million weights, on %s\n",
		s.name, s.blocks, s.layer, float64(s.weights(len(t.corpus.alphabet)))/1e6, where)
	saved := s.layer.Saved(s.tokens).Bytes()
	fmt.Fprintf(stdout, "each layer keeps %.3g MB from forward to backward\n", float64(saved)/1e6)
	fmt.Fprintf(stdout, "text of %d bytes, a tenth held out; %d steps of %d tokens; even guesses would be %.4f nats a byte\n",
		len(t.corpus.symbols), t.steps, s.passes*s.tokens, math.Log(float64(len(t.corpus.alphabet))))
	c, err := t.run(ctx)
	if err != nil {
		return err
	}
	if err := t.sample(ctx, o.sample); err != nil {
		return err
	}
	c.printLoad(stdout)
	fmt.Fprintf(stdout, "loss %.4f nats a byte (mean of the last tenth of the steps), held out %.4f, %.3g s in all\n",
		c.last(), c.heldOut[len(c.heldOut)-1].loss, time.Since(began).Seconds())
	if o.plot != "" {
		return c.draw(o.plot, fmt.Sprintf("%s on %s", s.name, where))
	}
	return nil
}

// or is the size, or the named one where it is none.
func (s size) or(name string) size {
	if s.name == "" {
		s, _ = findSize(name) // is there
	}
	return s
}

// newTraining makes a model and its text.
func newTraining(s size, o options, create makeExperts, out io.Writer) (*training, error) {
	text := queries
	if s.text > 0 {
		text = text[:s.text]
	}
	t := &training{corpus: newCorpus(text), size: s, steps: o.steps, balance: o.balance, seed: o.seed, out: out}
	if t.steps == 0 {
		t.steps = s.steps
	}
	if o.rate > 0 {
		t.size.rate = o.rate
	}
	var err error
	t.model, err = newModel(s, len(t.corpus.alphabet), o.seed, create)
	return t, err
}
