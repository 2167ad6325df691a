package parallel

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/hook"
)

// protocol is the version of the messages between ranks.
const protocol = 6

// steps has the functions of package moe that queue the steps of a pass.
var steps = hook.Ranks.(hook.Steps[*moe.Call, moe.ForwardArgs, moe.BackwardArgs, moe.Gradient])

// Options are the choices of a rank that joins a group. All ranks must have the same Config,
// MaxTokens, Chunks and PartialSums.
type Options struct {
	// Config is the whole layer, with the experts of all ranks. Config.Rounding, Config.Lists and
	// Config.LoRAAdapters are refused. With a table of adapters Down would overwrite H with Y, and Y is
	// sent home while H of later chunks is needed. H would therefore need memory of its own, and the
	// number of each token's adapter would have to travel.
	Config moe.Config
	// MaxTokens is the largest number of tokens that a rank has in one pass.
	MaxTokens int
	// Chunks is the number of chunks in which each rank multiplies the tokens of other ranks. The rows of a
	// chunk go home while the next chunk is multiplied. With more than two ranks, and with PartialSums, a
	// pass may have fewer chunks, see Groups. If Chunks is 0, each pass chooses it by the number of tokens.
	// The bits of results do not depend on it.
	Chunks int
	// PartialSums lets a rank send the sum of its rows of Y for each token of another rank, and not the
	// rows. Backward does the same with the rows of dX. Fewer bytes move, but the last bits of O and DX are
	// not one GPU's, and depend on the number of ranks. The package comment defines the sums.
	PartialSums bool
	// Deadline is the longest time of a pass, and of Join. 0 means one minute.
	Deadline time.Duration
	// Layer has options for both layers of the rank: a cache, tilings, WithoutBackward.
	Layer []moe.Option
}

// Rank is one rank's part of a layer. One goroutine at a time may use it, and all ranks of a
// group must make the same calls in the same order.
type Rank struct {
	Options
	transport   Transport
	dev         driver.Device
	home, owner *moe.Layer
	// call is a Call of home, experts a Call of owner.
	call, experts *moe.Call
	// count is the number of experts that the rank owns.
	count int
	// longPiece is what the function of this name returns. Tests change it.
	longPiece int64
	// last has the counts of the last forward pass.
	last counts
	// side is the stream of exchanges that overlap products. second is a stream for products next to
	// the stream of the pass. made is recorded at the end of a chunk's products, moved at the end of
	// exchanges, and arranged when the inputs of products are complete. arrived[i] is recorded when the
	// tokens of group i+1 are here.
	side, second          driver.Stream
	made, moved, arranged driver.Event
	arrived               []driver.Event
	trace                 trace
}

// Join makes a rank's part of a layer. If the ranks differ in protocol, Config, MaxTokens, Chunks
// or PartialSums, it returns an error on every rank before the ranks exchange anything else.
func Join(ctx context.Context, dev driver.Device, t Transport, o Options) (*Rank, error) {
	if ctx == nil || dev == nil || t == nil {
		return nil, errors.New("joining a group: want a context, a device and a transport, none of them nil")
	}
	if o.Deadline <= 0 {
		o.Deadline = time.Minute
	}
	r := &Rank{Options: o, transport: t, dev: dev}
	at := Step{Phase: "join"}
	err := r.refused()
	if err == nil {
		err = r.agree(ctx, at)
	}
	if err == nil {
		err = r.load(ctx)
	}
	if err != nil {
		return nil, r.fail(at, err)
	}
	return r, nil
}

// refused returns an error for a layer that a group cannot run.
func (r *Rank) refused() error {
	if err := moe.Check(r.Config); err != nil {
		return err
	}
	r.Config = r.Config.Normal()
	c, w := r.Config, r.transport.Ranks()
	switch {
	case c.Rounds():
		return &moe.ArgError{Field: "Config.Rounding", Got: fmt.Sprint(c.Rounding), Want: "none: a group does not round"}
	case c.LoRAAdapters != 0:
		return &moe.ArgError{Field: "Config.LoRAAdapters", Got: fmt.Sprint(c.LoRAAdapters), Want: "0: a group takes no table of adapters, see Options.Config"}
	case c.Lists:
		return &moe.ArgError{Field: "Config.Lists", Got: "true", Want: "false: a group takes no lists"}
	case w > c.NumExperts:
		return &moe.ArgError{Field: "ranks", Got: fmt.Sprint(w), Want: fmt.Sprintf("1 to %d, so that each rank has an expert", c.NumExperts)}
	case r.MaxTokens < 1 || r.MaxTokens > spec.MaxRows/c.TopK/w:
		return &moe.ArgError{Field: "MaxTokens", Got: fmt.Sprint(r.MaxTokens), Want: fmt.Sprintf("1 to %d: T·K of all ranks is below 2^31", spec.MaxRows/c.TopK/w)}
	}
	if most := c.NumExperts / w; r.Chunks < 0 || r.Chunks > most {
		return &moe.ArgError{Field: "Chunks", Got: fmt.Sprint(r.Chunks), Want: fmt.Sprintf("0 to %d, the least number of experts of a rank", most)}
	}
	return nil
}

// helloText is the number of words at the end of a hello that hold the Config's text.
const helloText = 60

// hello returns the words that ranks compare when they join.
func (r *Rank) hello() []int64 {
	words := []int64{protocol, int64(r.transport.Ranks()), int64(r.MaxTokens), int64(r.Chunks), 0}
	if r.PartialSums {
		words[len(words)-1] = 1
	}
	text := make([]int64, helloText)
	for i, b := range []byte(r.Config.String()) {
		text[i/8%helloText] ^= int64(b) << (i % 8 * 8)
	}
	return append(words, text...)
}

// agree returns an error if another rank has another protocol, number of ranks, MaxTokens, Chunks,
// PartialSums or Config.
func (r *Rank) agree(ctx context.Context, at Step) error {
	ctx, cancel := context.WithTimeout(ctx, r.Deadline)
	defer cancel()
	all, err := r.transport.Share(ctx, at, r.hello())
	if err != nil {
		return err
	}
	own := all[r.transport.Rank()]
	for i, other := range all {
		for j, field := range []string{"version of the protocol", "number of ranks", "MaxTokens", "number of chunks", "PartialSums"} {
			if other[j] != own[j] {
				return fmt.Errorf("rank %d has another %s: %d, this rank has %d", i, field, other[j], own[j])
			}
		}
		if a, b := text(other), text(own); a != b {
			return fmt.Errorf("rank %d has another Config: %s, this rank has %s", i, a, b)
		}
	}
	return nil
}

// text returns the text of the Config in a hello.
func text(hello []int64) string {
	var b strings.Builder
	for _, w := range hello[len(hello)-helloText:] {
		for i := range 8 {
			b.WriteByte(byte(w >> (8 * i)))
		}
	}
	return strings.TrimRight(b.String(), "\x00")
}

// load makes the rank's two layers, their calls, and the stream and events of exchanges.
func (r *Rank) load(ctx context.Context) (err error) {
	c, rank := r.Config, r.transport.Rank()
	r.count, r.longPiece = r.firstOf(rank+1)-r.firstOf(rank), longPiece(r.transport.Ranks())
	plain := c
	plain.Weights, plain.LoRARank, plain.LoRAAlpha, plain.RSLoRA = "", 0, 0, false // the home layer holds no expert weights
	with := func(part any) []moe.Option { return append(append([]moe.Option(nil), r.Layer...), part.(moe.Option)) }
	if r.home, err = moe.New(ctx, r.dev, plain, with(hook.Home)...); err != nil {
		return err
	}
	of := moe.Config{
		Hidden: c.Hidden, Intermediate: c.Intermediate, NumExperts: r.count, TopK: min(c.TopK, r.count), Type: c.Type, Logits: c.Logits, RouterF32: c.RouterF32, GateUp: c.GateUp, InOut: c.InOut,
		Weights: c.Weights, Activation: c.Activation, Alpha: c.Alpha, Limit: c.Limit, Bias: c.Bias, ScoreOnInput: c.ScoreOnInput, Lists: true, TokensHint: c.TokensHint,
		LoRARank: c.LoRARank, LoRAAlpha: c.LoRAAlpha, RSLoRA: c.RSLoRA,
	}
	if r.owner, err = moe.New(ctx, r.dev, of, with(hook.OfRank)...); err != nil {
		return err
	}
	r.call, r.experts = r.home.NewCall(), r.owner.NewCall()
	for _, s := range []*driver.Stream{&r.side, &r.second} {
		if *s, err = r.dev.NewStream(); err != nil {
			return err
		}
	}
	for _, e := range []*driver.Event{&r.made, &r.moved, &r.arranged} {
		if *e, err = r.dev.NewEvent(); err != nil {
			return err
		}
	}
	return nil
}

// Close releases what a rank holds on its device. It does not close the transport.
func (r *Rank) Close() error {
	err := errors.Join(r.side.Close(), r.second.Close(), r.made.Close(), r.moved.Close(), r.arranged.Close(), r.trace.close())
	for _, e := range r.arrived {
		err = errors.Join(err, e.Close())
	}
	return err
}

// fail breaks the group with an error of this rank, and returns the error as an *Error.
func (r *Rank) fail(at Step, err error) error {
	var of *Error
	if !errors.As(err, &of) {
		err = &Error{Rank: r.transport.Rank(), Ranks: r.transport.Ranks(), Step: at, Cause: err}
	}
	r.transport.Abort(err)
	return err
}

// Experts returns the number of this rank's first expert, and how many experts the rank owns. In
// the arguments of a pass, W1 and the other expert weights have these experts only.
func (r *Rank) Experts() (first, count int) {
	return r.firstOf(r.transport.Rank()), r.count
}

// WeightShapes returns the shapes of the weights in the arguments of a pass: the whole weights of
// the router and of the shared experts, and the other weights for this rank's experts.
func (r *Rank) WeightShapes() map[moe.TensorID]moe.Shape {
	shapes := map[moe.TensorID]moe.Shape{}
	whole, own := r.home.Config().Shapes(0), r.owner.Config().Shapes(0)
	for _, id := range moe.WeightIDs() {
		s := own.Of(id)
		if isHome(id) {
			s = whole.Of(id)
		}
		if !s.IsZero() {
			shapes[id] = s
		}
	}
	return shapes
}

// isHome reports whether every rank has the whole weight: a weight of the router or of the shared
// experts.
func isHome(id moe.TensorID) bool {
	row := spec.Row(id)
	return row.Role == spec.RoleRouterWeight || row.Needs&spec.HasShared != 0
}
