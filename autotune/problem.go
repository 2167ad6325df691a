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

// Candidate is a point of a search space, that is, one choice of the tuned parameters.
type Candidate[P comparable] struct {
	Point P
	// Estimate is the time that the cost model predicts. Candidates are tried in the order of
	// their estimates.
	Estimate time.Duration
	// Rejected is the reason why no kernel can have this point. If it is not empty, the
	// candidate is only listed in the report.
	Rejected string
}

// Problem describes one search. The type P of points is a struct with exported fields, because
// points are sent as JSON.
type Problem[P comparable] struct {
	// Name is the name of the kernel that is tuned, such as "up". The Bench and the report use
	// it.
	Name string
	// Key is the key under which the choice is stored.
	Key Key
	// Default is the cost model's point. It need not be in Space.
	Default P
	Space   []Candidate[P]
	// Sources emits the kernels of a point. Several goroutines call it at once.
	Sources func(P) ([]jit.Source, error)
	// Compile holds the options for compiling the kernels.
	Compile gpu.CompileOptions
}

// Bench tries points on a device that the Bench chooses. Only one goroutine uses a Bench.
type Bench[P comparable] interface {
	// Verify runs the kernels of the point on real data with poisoned outputs, and compares the
	// results with the reference. The error describes the difference. An error that matches
	// driver.ErrBroken means that the device is lost.
	Verify(ctx context.Context, problem string, p P) error
	// Time returns the device time of one run of the point, from a single measurement that runs it at
	// most a few times.
	Time(ctx context.Context, problem string, p P) (time.Duration, error)
	Close() error
}

// Setting is the input from which a Subject makes a Bench.
type Setting struct {
	// Spec is the argument spec of [NewSession] as JSON.
	Spec json.RawMessage
	// Cache holds the candidates' machine code.
	Cache *cache.Cache
	// Device is the caller's device. It is nil in a worker process, which opens a device of its
	// own.
	Device driver.Device
}

// Subject makes benches of one kind, in this process or in a worker process.
type Subject[P comparable] struct {
	name string
	open func(context.Context, Setting) (Bench[P], error)
}

// subjects holds the program's subjects by name. A worker process can serve each of them. If
// two subjects have the same name, neither can be used.
var (
	subjectsMu sync.Mutex
	subjects   = map[string]func(worker) error{}
)

// NewSubject registers a kind of bench under a unique name. Use it to initialise a package
// variable, because then worker processes know the subject, too.
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

// Digest returns the SHA-256 of the kernels' PTX, in hexadecimal. Different texts have
// different digests.
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
