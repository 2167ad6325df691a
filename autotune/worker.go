package autotune

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"sonicmoe/cache"
	"sonicmoe/driver"
)

// envWorker is set in worker processes.
const envWorker = "SONICMOE_AUTOTUNE_WORKER"

// replyMark begins a worker's lines on its standard output that are replies;
// whatever else a program prints there is not for us.
const replyMark = "autotune-reply:"

// hello is the first thing that a worker is told.
type hello struct {
	Subject string
	Spec    json.RawMessage
	// CacheDir holds the candidates' machine code.
	CacheDir string
}

// request asks a worker to try a point.
type request struct {
	Op      string // opVerify or opTime
	Problem string
	Point   json.RawMessage
}

const (
	opVerify = "verify"
	opTime   = "time"
)

// reply is a worker's answer to hello or a request.
type reply struct {
	// Error is empty where all went well. Broken says that the worker can't go
	// on.
	Error  string
	Broken bool
	Time   time.Duration
}

// mayWork says that this program's main calls WorkerMain: that starting it
// again gives a worker and not the program.
var mayWork atomic.Bool

// WorkerMain makes a program its own worker: called first in main, it returns
// at once in the program itself, and never in a process that a Session
// started.
func WorkerMain() {
	if os.Getenv(envWorker) == "" {
		mayWork.Store(true)
		return
	}
	os.Unsetenv(envWorker) // not for processes that the bench starts
	if err := work(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "autotune worker:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// worker is a served connection.
type worker struct {
	hello hello
	// requests is closed when no more will come.
	requests <-chan request
	out      io.Writer
}

// work serves what comes on in until it ends. A worker whose parent is gone
// goes too, whatever it is doing: nobody could stop it then.
func work(in io.Reader, out io.Writer) error {
	decode := json.NewDecoder(in)
	w := worker{out: out}
	if err := decode.Decode(&w.hello); err != nil {
		return fmt.Errorf("reading what to serve: %w", err)
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

// answer writes one reply.
func (w worker) answer(r reply) error {
	line, err := json.Marshal(r)
	if err == nil {
		_, err = fmt.Fprintf(w.out, "%s%s\n", replyMark, line)
	}
	return err
}

// serve makes a bench of the subject and answers requests until the bench's
// device is lost.
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
		a := reply{}
		if err = json.Unmarshal(r.Point, &p); err == nil {
			a.Time, err = try(ctx, bench, r.Op, r.Problem, p)
		}
		if err != nil {
			a.Error, a.Broken = err.Error(), errors.Is(err, driver.ErrBroken)
		}
		if err := w.answer(a); err != nil || a.Broken {
			return err // the process ends, and the device's trouble with it
		}
	}
	return bench.Close()
}

// try does what a request asks for.
func try[P comparable](ctx context.Context, bench Bench[P], op, problem string, p P) (time.Duration, error) {
	switch op {
	case opVerify:
		return 0, bench.Verify(ctx, problem, p)
	case opTime:
		return bench.Time(ctx, problem, p)
	}
	return 0, fmt.Errorf("unknown request %q", op)
}
