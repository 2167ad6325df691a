package autotune

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"sync"
	"time"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/jit"
)

// Candidate is a point of a search space.
type Candidate[P comparable] struct {
	Point P
	// Estimate is the cost model's; candidates are tried by rising estimate.
	Estimate time.Duration
	// Rejected, unless empty, says why no kernel can have this point. It is
	// reported and not tried.
	Rejected string
}

// Problem is one search. Points are struct values with exported fields: they
// travel as JSON.
type Problem[P comparable] struct {
	// Name is what is tuned, for the Bench and the report: "up".
	Name string
	// Key is what the choice is stored under.
	Key Key
	// Default is the cost model's point. It need not be in the space.
	Default P
	Space   []Candidate[P]
	// Sources emits the kernels that a point stands for. It is called by many
	// goroutines.
	Sources func(P) ([]jit.Source, error)
	// Compile are the options that the kernels are compiled with.
	Compile driver.CompileOptions
}

// Bench tries points on a device of its own choice. It belongs to one
// goroutine.
type Bench[P comparable] interface {
	// Verify runs the point's kernels on real data and poisoned outputs and
	// holds the results against the reference. The error says what was wrong;
	// one that matches driver.ErrBroken means that the device is lost.
	Verify(ctx context.Context, problem string, p P) error
	// Time measures the point once: device time, of a few runs at most.
	Time(ctx context.Context, problem string, p P) (time.Duration, error)
	Close() error
}

// Setting is what a Bench is made from.
type Setting struct {
	// Spec is the session's, as JSON.
	Spec json.RawMessage
	// Cache holds the candidates' machine code.
	Cache *cache.Cache
	// Device is the caller's device; nil in a worker process, which opens one
	// of its own.
	Device driver.Device
}

// Subject makes benches of one kind, in this process or in a worker.
type Subject[P comparable] struct {
	name string
	open func(context.Context, Setting) (Bench[P], error)
}

// subjects are those of the program: what a worker can serve. A name that is
// taken twice serves nobody.
var (
	subjectsMu sync.Mutex
	subjects   = map[string]func(worker) error{}
)

// NewSubject registers a kind of bench under a name that no other has. It
// belongs in a package variable, so that worker processes know it too.
func NewSubject[P comparable](name string, open func(context.Context, Setting) (Bench[P], error)) *Subject[P] {
	s := &Subject[P]{name: name, open: open}
	subjectsMu.Lock()
	defer subjectsMu.Unlock()
	if _, taken := subjects[name]; taken {
		subjects[name] = nil
	} else {
		subjects[name] = func(w worker) error { return serve(w, s) }
	}
	return s
}

// Digest is the SHA-256 of kernels' PTX, in hexadecimal. Where it differs the
// text has changed.
func Digest(sources []jit.Source) string {
	h := sha256.New()
	for _, s := range sources {
		text := s.Module.Print().PTX
		var length [8]byte
		binary.LittleEndian.PutUint64(length[:], uint64(len(text)))
		h.Write(length[:])
		h.Write(text)
	}
	return hex.EncodeToString(h.Sum(nil))
}
