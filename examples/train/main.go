// Command train trains a small language model whose blocks are MoE layers.
//
//	train [-device cuda|cuda:N|emulated|reference] [-size tiny|small|large] [-steps N]
//	      [-freeze] [-lora RANK] [-balance WEIGHT] [-rate RATE] [-plot NAME.png] [-sample BYTES]
//	      [-seed N] [-cache DIR|off] [-rounding RULES|all [-seeds N]] [-ranks N [-partial-sums]]
//
// The text is the Queries of Newton's Opticks. The model predicts the next byte from a window
// of bytes before it. Each block is x + MoE(RMSnorm(x)). The MoE layer and its optimizer run on
// the device. Embedding, norms, output product and cross entropy run on the host in float64.
// There is no attention: each byte of the window adds a vector that depends on its symbol and
// its distance.
//
// A tenth of the text is held out from training. train prints the loss on it, and the loss on
// the batches of the training steps.
//
// -device reference also runs the MoE layer on the host, in float64. It is slow. Its loss is
// the reference for the device's loss. -freeze does not train the experts, which shows how much
// their training contributes. -lora trains a low-rank adapter of the experts and leaves their own
// weights as they were drawn.
//
// -ranks spreads the experts of each layer over ranks, and the tokens of each pass. Each rank has a
// GPU, or an emulated device. If there are fewer GPUs than ranks, ranks share them. All losses are the
// same as without -ranks, bit for bit. With -partial-sums a rank sends the sum of its experts' rows for a
// token, and not the rows. Fewer bytes move, and the losses differ in their last digits.
//
// -rounding trains once with each rule of token rounding, and prints the losses in one table.
// The loss on held-out text is always computed with plain top-K.
package main

import (
	"context"
	"errors"
	"io"
	"math"
	"time"

	"sonicmoe/examples/internal/command"
	"sonicmoe/examples/internal/picture"
	"sonicmoe/examples/internal/setup"
	"sonicmoe/moe"
)

var program = command.Program{Name: "train", Purpose: "trains a small language model whose blocks are MoE layers, and prints its losses."}

func main() { program.Main(run) }

// options holds the values of the flags.
type options struct {
	device, size, plot, cache string
	steps, sample, lora       int
	ranks                     int // 0 is one device without a group
	freeze, sums              bool
	balance, rate             float64
	seed                      uint64
	// ways lists the rules of rounding to train with. rounding is the rule of the present
	// training.
	ways     []moe.Rounding
	seeds    int
	rounding moe.Rounding
}

func parse(args []string, stdout io.Writer) (o options, err error) {
	f := program.Flags()
	f.StringVar(&o.device, "device", "", "`name` of the device: cuda, cuda:N, emulated or reference (default: a GPU, else emulated)")
	f.StringVar(&o.size, "size", "", "`size` of the model: tiny, small or large (default: large on a GPU, else tiny)")
	f.IntVar(&o.steps, "steps", 0, "`number` of steps (default: by the size)")
	f.BoolVar(&o.freeze, "freeze", false, "do not train the experts' weights")
	f.IntVar(&o.lora, "lora", 0, "train an adapter of this `rank` in place of the experts' weights, with alpha twice the rank")
	f.Float64Var(&o.balance, "balance", 0.01, "weight of the load-balancing loss, 0 for none")
	f.Float64Var(&o.rate, "rate", 0, "largest learning `rate` (default: by the size)")
	f.IntVar(&o.sample, "sample", 100, "`bytes` of text to write at the end")
	f.StringVar(&o.plot, "plot", "", "draw the loss curve to this .png or .svg `file`")
	f.Uint64Var(&o.seed, "seed", 1, "`number` that weights and batches follow from")
	f.Func("rounding", "compare `rules` of token rounding, with commas (none is plain top-K), or all", func(list string) (err error) {
		o.ways, err = parseWays(list)
		return err
	})
	f.IntVar(&o.seeds, "seeds", 1, "with -rounding: `number` of trainings with each rule, with successive seeds")
	f.IntVar(&o.ranks, "ranks", 0, "spread the experts over this `number` of ranks, with the same losses (default: none)")
	f.BoolVar(&o.sums, "partial-sums", false, "with -ranks: send a sum for each token and rank, and not a row for each of its experts (parallel.Options.PartialSums)")
	cache := setup.CacheFlag(f)
	if err = program.Parse(f, args, stdout); err != nil {
		return o, err
	}
	o.cache = *cache
	switch {
	case o.steps < 0:
		return o, command.Usagef("-steps is %d, must be at least 0", o.steps)
	case o.lora < 0:
		return o, command.Usagef("-lora is %d, must be at least 0", o.lora)
	case o.lora > 0 && o.freeze:
		return o, command.Usagef("-lora and -freeze are set, must be one of them")
	case o.ranks < 0:
		return o, command.Usagef("-ranks is %d, must be at least 0", o.ranks)
	case o.ranks > 0 && (o.lora > 0 || len(o.ways) > 0):
		return o, command.Usagef("-ranks is set, must not be with -lora or -rounding: a group has no adapters and does not round")
	case o.sums && o.ranks == 0:
		return o, command.Usagef("-partial-sums is set, must not be without -ranks: one device sends no sums")
	case o.seeds < 1:
		return o, command.Usagef("-seeds is %d, must be at least 1", o.seeds)
	case o.sample < 0:
		return o, command.Usagef("-sample is %d, must be at least 0", o.sample)
	case !(o.rate >= 0) || math.IsInf(o.rate, 1):
		return o, command.Usagef("-rate is %v, must be a number from 0", o.rate)
	case !(o.balance >= 0) || math.IsInf(o.balance, 1):
		return o, command.Usagef("-balance is %v, must be a number from 0", o.balance)
	}
	if o.size != "" {
		if _, err = findSize(o.size); err != nil {
			return o, command.Usagef("%w", err)
		}
	}
	if o.plot != "" {
		err = picture.Check(o.plot)
	}
	return o, err
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stdout)
	if err != nil {
		return err
	}
	if len(o.ways) > 0 {
		return compare(ctx, o, stdout, stderr)
	}
	began := time.Now()
	p, err := openPlace(ctx, o, stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	t, err := newTraining(p.size, o, p.create, stdout)
	if err != nil {
		return err
	}
	t.describe(p.name)
	c, err := t.run(ctx)
	if err != nil {
		return err
	}
	if err := t.sample(ctx, o.sample); err != nil {
		return err
	}
	c.printLoad(stdout)
	c.printLoss(stdout, time.Since(began))
	if o.plot != "" {
		return c.draw(o.plot, p.size.name+", "+p.name)
	}
	return nil
}
