package moe

import (
	"fmt"
	"log/slog"
	"reflect"

	"sonicmoe/autotune"
	"sonicmoe/cache"
)

// Option changes how New works.
type Option func(*options)

type options struct {
	cache        *cache.Cache
	withoutCache bool
	logger       *slog.Logger
	// tilings are the caller's tilings, by product.
	tilings map[string]string
	// choices are tuned tilings; ownChoices reports whether the caller named them.
	choices    autotune.Store
	ownChoices bool
	// decode, unless nil, is the largest number of tokens of a small batch.
	decode *int
	// forwardOnly leaves out the kernels of backward.
	forwardOnly bool
	// part is the part of the layer that this process has; see ranks.go.
	part part
	// gradients has the modes of WithGradients; nil means all.
	gradients []gradientWant
	// err is the first wrong option.
	err error
}

// optionsOf applies options.
func optionsOf(opts []Option) (options, error) {
	o := options{logger: slog.New(slog.DiscardHandler)}
	for i, f := range opts {
		if f == nil {
			return o, &ArgError{Field: fmt.Sprintf("opts[%d]", i), Got: "nil", Want: "an Option"}
		}
		f(&o)
	}
	return o, o.err
}

// openCache opens the default cache unless the caller has set one or none. It takes tuned tilings
// from the cache unless the caller has named another source.
func (o *options) openCache() {
	if o.cache == nil && !o.withoutCache {
		o.cache = cache.Open(cache.Options{Logger: o.logger})
	}
	if o.cache != nil && !o.ownChoices {
		o.choices = o.cache
	}
}

// refuse keeps the first wrong option.
func (o *options) refuse(field, got, want string) {
	if o.err == nil {
		o.err = &ArgError{Field: field, Got: got, Want: want}
	}
}

// WithCache keeps compiled modules and tuned tilings in c instead of the default directory.
func WithCache(c *cache.Cache) Option {
	return func(o *options) {
		o.cache, o.withoutCache = c, false
		if c == nil {
			o.refuse("WithCache", "nil", "an open cache; WithoutCache means none")
		}
	}
}

// WithoutCache keeps nothing on disk: every process compiles its kernels, and the
// cost model picks the tilings.
func WithoutCache() Option {
	return func(o *options) { o.cache, o.withoutCache = nil, true }
}

// WithLogger gives l the reports of New: compiled kernels at Info, problems with the cache at Warn.
// By default New logs nothing. A cache given by WithCache reports its own problems to its own
// logger.
func WithLogger(l *slog.Logger) Option {
	return func(o *options) {
		if l != nil {
			o.logger = l
		}
	}
}

// WithTilings sets the tilings of products, by the product's name: "up", "down", "dh", "dw2", "dw1"
// or "dx". They replace tuned tilings and the cost model's. Products without an entry are not
// changed. A tiling such as "128x256 s4 p8 c1" has tiles of 128 rows and 256 columns, a ring of 4
// stages, groups of 8 row tiles and clusters of 1 CTA. Results have the same bits with every
// tiling.
func WithTilings(byProduct map[string]string) Option {
	return func(o *options) { o.tilings = byProduct }
}

// WithTunedFrom takes tuned tilings from s in place of the cache. s is a *cache.Cache or an
// autotune.File, such as one file for all ranks of a job: every process with the same source has
// the same tilings. Results have the same bits with every source.
func WithTunedFrom(s interface {
	GetChoice(key string) (value []byte, ok bool)
}) Option {
	return func(o *options) {
		if v := reflect.ValueOf(s); s == nil || v.Kind() == reflect.Pointer && v.IsNil() {
			o.refuse("WithTunedFrom", "nil", "a source of tuned tilings; WithoutTuning means none")
			return
		}
		o.choices, o.ownChoices = s, true
	}
}

// WithoutTuning ignores tuned tilings: the cost model decides.
func WithoutTuning() Option {
	return func(o *options) { o.choices, o.ownChoices = nil, true }
}

// WithDecode sets the largest number of tokens for which forward passes use the small-batch
// kernels, which take about the time of reading the weights. Without the option a layer chooses the
// number itself. Results have the same bits with every number: a token's output depends neither on
// the rest of the batch nor on its size.
func WithDecode(tokens int) Option {
	return func(o *options) {
		o.decode = &tokens
		if tokens < 0 {
			o.refuse("WithDecode", fmt.Sprint(tokens), "0 or more tokens")
		}
	}
}

// WithoutDecode leaves out the small-batch kernels. There is half as much to
// compile, and for a layer WithoutBackward about a sixth.
func WithoutDecode() Option { return func(o *options) { o.decode = new(int) } }

// WithoutBackward leaves out the kernels of the backward pass, for inference:
// there is less to compile, and Call.Backward returns an error.
func WithoutBackward() Option { return func(o *options) { o.forwardOnly = true } }
