package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"time"
)

// training is a model during its training.
type training struct {
	model   *model
	corpus  *corpus
	size    size
	steps   int
	balance float64 // weight of the balance loss
	seed    uint64
	out     io.Writer
}

// newTraining creates a model and the corpus that it learns from.
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

// describe prints the sizes of the model and the name of the place where it runs.
func (t *training) describe(place string) {
	s, c := t.size, t.corpus
	blocks := "blocks"
	if s.blocks == 1 {
		blocks = "block"
	}
	fmt.Fprintf(t.out, "%s: %d %s of %v, %.3g million weights, on %s\n",
		s.name, s.blocks, blocks, s.layer, float64(s.weights(len(c.alphabet)))/1e6, place)
	fmt.Fprintf(t.out, "each layer keeps %.3g MB from forward to backward\n", float64(s.layer.SavedBytes(s.tokens))/1e6)
	fmt.Fprintf(t.out, "text of %d bytes, a tenth held out; %d steps of %d tokens; even guesses would be %.4f nats a byte\n",
		len(c.symbols), t.steps, s.passes*s.tokens, math.Log(float64(len(c.alphabet))))
}

// curve holds the losses of a training.
type curve struct {
	// losses has, for each step, the mean cross entropy of the step's batches in nats, computed
	// before the weights change.
	losses []float64
	// heldOut has losses on the held-out text.
	heldOut []point
	// load counts the tokens of each expert of each block, in the last tenth of the steps.
	load [][]int
}

// point is a loss, with the number of steps before it.
type point struct {
	step int
	loss float64
}

// reports is the number of lines that a training prints.
const reports = 10

// run takes all steps. The positions of the text from which the steps learn depend only on the
// seed.
func (t *training) run(ctx context.Context) (*curve, error) {
	r := rand.New(rand.NewPCG(t.seed, 2))
	held := t.corpus.heldOut(t.size.tokens, t.size.context)
	c := &curve{load: make([][]int, t.size.blocks)}
	for i := range c.load {
		c.load[i] = make([]int, t.size.layer.NumExperts)
	}
	every := max(t.steps/reports, 1)
	began := time.Now()
	for step := range t.steps {
		if step%every == 0 {
			if err := t.report(ctx, c, held, step, time.Since(began)); err != nil {
				return nil, err
			}
		}
		loss, err := t.step(ctx, r, step, c)
		if err != nil {
			return nil, err
		}
		if math.IsNaN(loss) || math.IsInf(loss, 0) {
			return nil, fmt.Errorf("the loss of step %d is %v, must be finite: a smaller -rate may help", step, loss)
		}
		c.losses = append(c.losses, loss)
	}
	return c, t.report(ctx, c, held, t.steps, time.Since(began))
}

// step learns from the batches of one step and returns their mean loss.
func (t *training) step(ctx context.Context, r *rand.Rand, step int, c *curve) (float64, error) {
	var sum float64
	passes := float64(t.size.passes)
	for range t.size.passes {
		loss, err := t.model.forward(ctx, t.corpus.draw(r, t.size.tokens, t.size.context), true)
		if err != nil {
			return 0, err
		}
		sum += loss
		if err := t.model.backward(ctx, 1/passes, t.balance); err != nil {
			return 0, err
		}
		if step >= t.steps-max(t.steps/10, 1) {
			c.count(t.model)
		}
	}
	return sum / passes, t.model.step(ctx, adam{rate: t.rate(step), step: step + 1})
}

// rate returns the learning rate of a step. It rises linearly during the first twentieth of the
// steps, and then falls linearly to 0.
func (t *training) rate(step int) float64 {
	warm := t.steps/20 + 1
	if step < warm {
		return t.size.rate * float64(step+1) / float64(warm)
	}
	return t.size.rate * float64(t.steps-step) / float64(t.steps-warm+1)
}

// sample prints a text of n bytes with which the model continues the text before the first
// held-out position.
func (t *training) sample(ctx context.Context, n int) error {
	if n == 0 {
		return nil
	}
	c := t.corpus
	after := c.symbols[c.firstHeldOut()-t.size.context : c.firstHeldOut()]
	text, err := t.model.write(ctx, after, n, rand.New(rand.NewPCG(t.seed, 3)))
	if err == nil {
		fmt.Fprintf(t.out, "after %q it writes: %q\n", c.text(after), c.text(text))
	}
	return err
}

// count adds the loads of the experts in the latest pass.
func (c *curve) count(m *model) {
	for i, b := range m.blocks {
		for _, e := range b.ids {
			c.load[i][e]++
		}
	}
}

// report measures the loss on the held-out text, and prints a line.
func (t *training) report(ctx context.Context, c *curve, held []batch, step int, took time.Duration) error {
	var loss float64
	for _, b := range held {
		part, err := t.model.forward(ctx, b, false)
		if err != nil {
			return err
		}
		loss += part / float64(len(held))
	}
	c.heldOut = append(c.heldOut, point{step, loss})
	line := fmt.Sprintf("step %5d  held out %.4f", step, loss)
	if step > 0 {
		line += fmt.Sprintf("  loss %.4f  %.3g s", c.last(), took.Seconds())
	}
	fmt.Fprintln(t.out, line)
	return nil
}

// last returns the mean loss of the last tenth of the steps so far, or of the last step if
// there are fewer than ten.
func (c *curve) last() float64 {
	tail := c.losses[len(c.losses)-max(len(c.losses)/10, 1):]
	var sum float64
	for _, l := range tail {
		sum += l
	}
	return sum / float64(len(tail))
}

// printLoss prints the losses at the end. It adds a remark if the training loss is far below
// the held-out loss.
func (c *curve) printLoss(out io.Writer, took time.Duration) {
	heldOut := c.heldOut[len(c.heldOut)-1].loss
	fmt.Fprintf(out, "loss %.4f nats a byte (mean of the last tenth of the steps), held out %.4f, %.3g s in all\n", c.last(), heldOut, took.Seconds())
	if heldOut > 1.1*c.last() {
		fmt.Fprintln(out, "the held-out loss is larger: the model has learned parts of the short text by heart")
	}
}

// printLoad prints the load of each expert as a bar. A full bar means at least twice an even
// share.
func (c *curve) printLoad(out io.Writer) {
	bars := []rune(" ▁▂▃▄▅▆▇█")
	for i, counts := range c.load {
		total, least, most := 0, counts[0], 0
		for _, n := range counts {
			total, least, most = total+n, min(least, n), max(most, n)
		}
		if total == 0 {
			continue
		}
		even := float64(total) / float64(len(counts))
		var b strings.Builder
		for _, n := range counts {
			b.WriteRune(bars[min(int(float64(n)/even*4+0.5), len(bars)-1)])
		}
		fmt.Fprintf(out, "load of block %d's experts: [%s] from %.2f to %.2f of an even share\n",
			i, b.String(), float64(least)/even, float64(most)/even)
	}
}
