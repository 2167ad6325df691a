package autotune

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"sonicmoe/cache"
	"sonicmoe/driver"
)

// envWorker is the environment variable that makes a process a worker. Its value names two
// pipes, separated by a comma: one for requests and one for replies. Nothing else uses these
// pipes. Output that a candidate prints is therefore never read as a reply.
const envWorker = "SONICMOE_AUTOTUNE_WORKER"

// hello is the first message to a worker. Its reply has the number 0.
type hello struct {
	Subject string
	Spec    json.RawMessage
	// CacheDir is the directory with the candidates' machine code.
	CacheDir string
}

// request asks a worker to try a point.
type request struct {
	// N numbers the requests, from 1 on. The reply to a request has the same number.
	N       uint64
	Op      string // opVerify or opTime
	Problem string
	Point   json.RawMessage
}

const (
	opVerify = "verify"
	opTime   = "time"
)

// reply is a worker's answer to hello or to a request.
type reply struct {
	N uint64
	// Error is empty after success. Broken reports whether the worker cannot continue.
	Error  string
	Broken bool
	Time   time.Duration
}

// mayWork reports whether main has called WorkerMain. If so, starting the program again gives a
// worker.
var mayWork atomic.Bool

// WorkerMain turns the process into a worker if a Session started it as one, and then does not
// return. Otherwise it returns at once. Call it first in main.
func WorkerMain() {
	if os.Getenv(envWorker) == "" {
		mayWork.Store(true)
		return
	}
	in, out, err := pipes(os.Getenv(envWorker))
	os.Unsetenv(envWorker) // processes that the bench starts must not become workers
	if err == nil {
		err = work(in, out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "autotune worker:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// pipes opens the pipes that the environment variable names.
func pipes(names string) (in io.Reader, out io.Writer, err error) {
	first, second, _ := strings.Cut(names, ",")
	r, err := inherited(first)
	if err != nil {
		return nil, nil, fmt.Errorf("%s is %q, but it is set in worker processes only: %w", envWorker, names, err)
	}
	w, err := inherited(second)
	if err != nil {
		return nil, nil, fmt.Errorf("%s is %q, but it is set in worker processes only: %w", envWorker, names, err)
	}
	return r, w, nil
}

// worker serves the requests of one session.
type worker struct {
	hello hello
	// requests is closed after the last request.
	requests <-chan request
	out      io.Writer
}

// work reads requests from the parameter in, and serves them until this input ends. When the parent
// ends, the worker exits at once, even during a request, because nothing could stop it later.
func work(in io.Reader, out io.Writer) error {
	decode := json.NewDecoder(in)
	w := worker{out: out}
	if err := decode.Decode(&w.hello); err != nil {
		return fmt.Errorf("reading the first message: %w", err)
	}
	serve := subjects[w.hello.Subject]
	if serve == nil {
		return w.answer(reply{Error: fmt.Sprintf("this program has no single bench named %q", w.hello.Subject), Broken: true})
	}
	requests := make(chan request)
	w.requests = requests
	go func() {
		for {
			var r request
			if err := decode.Decode(&r); err != nil {
				os.Exit(0)
			}
			requests <- r
		}
	}()
	return serve(w)
}

// mostErrorBytes is the largest length of the error in a reply.
const mostErrorBytes = 16 << 10

// answer writes one reply as a line.
func (w worker) answer(r reply) error {
	r.Error = strings.ToValidUTF8(r.Error[:min(len(r.Error), mostErrorBytes)], "")
	return json.NewEncoder(w.out).Encode(r)
}

// serve makes a bench of the subject. It then answers requests until there are no more, or
// until the bench's device is lost.
func serve[P comparable](w worker, s *Subject[P]) error {
	ctx := context.Background()
	bench, err := s.open(ctx, Setting{Spec: w.hello.Spec, Cache: cache.Open(cache.Options{Dir: w.hello.CacheDir})})
	if err != nil {
		return w.answer(reply{Error: err.Error(), Broken: true})
	}
	if err := w.answer(reply{}); err != nil {
		return err
	}
	for r := range w.requests {
		var p P
		a := reply{N: r.N}
		if err = json.Unmarshal(r.Point, &p); err == nil {
			a.Time, err = try(ctx, bench, r.Op, r.Problem, p)
		}
		if err != nil {
			a.Error, a.Broken = err.Error(), errors.Is(err, driver.ErrBroken)
		}
		if err := w.answer(a); err != nil || a.Broken {
			return err // the process ends, and with it the broken context of the device
		}
	}
	return bench.Close()
}

// try carries out one request.
func try[P comparable](ctx context.Context, bench Bench[P], op, problem string, p P) (time.Duration, error) {
	switch op {
	case opVerify:
		return 0, bench.Verify(ctx, problem, p)
	case opTime:
		d, err := bench.Time(ctx, problem, p)
		if err == nil && d <= 0 {
			err = fmt.Errorf("the time measured is %v, must be positive", d)
		}
		return d, err
	}
	return 0, fmt.Errorf("unknown request %q", op)
}
