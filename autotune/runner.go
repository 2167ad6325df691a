package autotune

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"sonicmoe/driver"
)

// failure is a trial that went wrong: what became of the point.
type failure struct {
	status Status
	reason string
}

func (f *failure) Error() string { return f.status.String() + ": " + f.reason }

// lost reports whether the runner can't go on after the failure.
func (f *failure) lost() bool { return f.status != Wrong }

// runner tries points, in this process or in another. Errors are *failure, or
// the context's.
type runner[P comparable] interface {
	try(ctx context.Context, op, problem string, p P, limit time.Duration) (time.Duration, error)
	// close ends the runner; after a failure that is lost it kills it.
	close()
}

// local runs in the caller's process.
type local[P comparable] struct{ bench Bench[P] }

func (l local[P]) try(ctx context.Context, op, problem string, p P, limit time.Duration) (time.Duration, error) {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	d, err := try(limited, l.bench, op, problem, p)
	switch {
	case err == nil:
		return d, nil
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case errors.Is(err, driver.ErrBroken):
		return 0, &failure{Faulted, err.Error()}
	case errors.Is(err, context.DeadlineExceeded):
		return 0, &failure{Hung, fmt.Sprintf("no answer in %v", limit)}
	}
	return 0, &failure{Wrong, err.Error()}
}

func (l local[P]) close() { _ = l.bench.Close() } // nothing depends on it any more

// remote is a worker process.
type remote[P comparable] struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	encode  *json.Encoder
	replies chan reply
	// gone is closed when the process has ended; then how says how.
	gone chan struct{}
	how  string
	said tail
}

// killWait is how long a killed worker may take to go: the driver cleans up
// after it.
const killWait = 10 * time.Second

// startWorker starts this program as a worker and waits until its bench is
// ready.
func startWorker[P comparable](ctx context.Context, h hello, limit time.Duration) (*remote[P], error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	r := &remote[P]{cmd: exec.Command(exe), replies: make(chan reply, 1), gone: make(chan struct{})}
	r.cmd.Env = append(os.Environ(), envWorker+"=1")
	r.cmd.Stderr = &r.said
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	r.encode = json.NewEncoder(r.in)
	go r.listen(out)
	a, err := r.ask(ctx, h, limit)
	if err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// listen hands replies on until the process ends.
func (r *remote[P]) listen(out io.Reader) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		text, ok := strings.CutPrefix(lines.Text(), replyMark)
		var a reply
		if ok && json.Unmarshal([]byte(text), &a) == nil {
			r.replies <- a
		}
	}
	_, _ = io.Copy(io.Discard, out) // a line too long: let the process end
	err := r.cmd.Wait()
	r.how = "the worker process ended"
	if err != nil {
		r.how += ": " + err.Error()
	}
	if said := r.said.String(); said != "" {
		r.how += "; it said: " + said
	}
	close(r.gone)
}

// ask sends a message and waits for its reply.
func (r *remote[P]) ask(ctx context.Context, message any, limit time.Duration) (reply, error) {
	if err := r.encode.Encode(message); err != nil {
		// A process that has ended takes no message; it says more itself.
		r.kill()
		return reply{}, &failure{Died, r.how}
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case a := <-r.replies:
		return a, nil
	case <-r.gone:
		select {
		case a := <-r.replies: // its last words
			return a, nil
		default:
			return reply{}, &failure{Died, r.how}
		}
	case <-timer.C:
		r.kill()
		return reply{}, &failure{Hung, fmt.Sprintf("no answer in %v; its worker process was killed", limit)}
	case <-ctx.Done():
		r.kill()
		return reply{}, ctx.Err()
	}
}

func (r *remote[P]) try(ctx context.Context, op, problem string, p P, limit time.Duration) (time.Duration, error) {
	point, err := json.Marshal(p)
	if err != nil {
		return 0, &failure{Wrong, "the point can't be sent to a worker: " + err.Error()}
	}
	a, err := r.ask(ctx, request{op, problem, point}, limit)
	switch {
	case err != nil:
		return 0, err
	case a.Broken:
		return 0, &failure{Faulted, a.Error}
	case a.Error != "":
		return 0, &failure{Wrong, a.Error}
	}
	return a.Time, nil
}

// kill ends the process and waits for that, though not forever.
func (r *remote[P]) kill() {
	_ = r.cmd.Process.Kill() // it may have ended
	select {
	case <-r.gone:
	case <-time.After(killWait):
	}
}

// close lets the process end by itself, and kills it if it won't.
func (r *remote[P]) close() {
	_ = r.in.Close()
	select {
	case <-r.gone:
	case <-time.After(time.Second):
		r.kill()
	}
}

// tail keeps the end of what is written.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailBytes = 2048

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if n := len(t.text); n > tailBytes {
		t.text = append(t.text[:0], t.text[n-tailBytes:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}
