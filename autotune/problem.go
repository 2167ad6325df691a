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
	"sonicmoe/driver/gpu"
	"sonicmoe/jit"
)

// Candidate is a point of a search space.
type Candidate[P comparable] struct {
	Point P
	// Estimate is the time by the cost model. Candidates are tried in the order of their
	// estimates.
	Estimate time.Duration
	// Rejected, unless empty, is the reason why no kernel can have this point. The report
	// lists it; it is not tried.
	Rejected string
}

// Problem describes one search. Points are structs with exported fields, because they are
// sent as JSON.
type Problem[P comparable] struct {
	// Name is the name of the tuned kernel, for the Bench and the report: "up".
	Name string
	// Key is the key under which the choice is stored.
	Key Key
	// Default is the cost model's point. It may be outside of the space.
	Default P
	Space   []Candidate[P]
	// Sources emits the kernels of a point. Several goroutines call it at once.
	Sources func(P) ([]jit.Source, error)
	// Compile has the options for compiling the kernels.
	Compile gpu.CompileOptions
}

// Bench tries points on a device that it chooses. One goroutine uses it.
type Bench[P comparable] interface {
	// Verify runs the kernels of the point on real data with poisoned outputs, and compares
	// the results with the reference. The error describes the difference. If it matches
	// driver.ErrBroken, the device is lost.
	Verify(ctx context.Context, problem string, p P) error
	// Time measures the point once and returns the device time, from a few runs at most.
	Time(ctx context.Context, problem string, p P) (time.Duration, error)
	Close() error
}

// Setting is the input for making a Bench.
type Setting struct {
	// Spec is the session's spec as JSON.
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

// subjects has the subjects of the program, which a worker can serve. If two subjects have
// the same name, neither can be used.
var (
	subjectsMu sync.Mutex
	subjects   = map[string]func(worker) error{}
)

// NewSubject registers a kind of bench under a unique name. Call it for a package variable,
// so that worker processes know the subject too.
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

// Digest returns the SHA-256 of the kernels' PTX, in hexadecimal. It differs if and only if
// the text differs.
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
