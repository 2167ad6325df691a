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
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"sonicmoe/driver"
)

// failure is the status of a point whose trial failed.
type failure struct {
	status Status
	reason string
}

func (f *failure) Error() string { return f.status.String() + ": " + f.reason }

// lost reports whether the failure leaves the runner unable to continue.
func (f *failure) lost() bool { return f.status != Wrong }

// runner tries points in this process or in another. An error is a *failure or the error of the
// context.
type runner[P comparable] interface {
	try(ctx context.Context, op, problem string, p P, limit time.Duration) (time.Duration, error)
	// close ends the runner. If its process cannot go on after a failure, such as a kernel that hangs,
	// close kills the process.
	close()
}

// local tries points in the caller's process.
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

func (l local[P]) close() { _ = l.bench.Close() } // nothing uses the bench any more

// remote is a worker process.
type remote[P comparable] struct {
	cmd *exec.Cmd
	// requests carries messages to the process. replies has the process's answers, each with the
	// number of its request.
	requests io.WriteCloser
	last     uint64
	replies  chan reply
	// silent is closed when no more replies can come. gone is closed when the process has
	// ended, and how then describes the end.
	silent, gone chan struct{}
	how          string
	// done is closed when replies are no longer needed.
	done chan struct{}
	said tail
}

const (
	// killWait is the longest time to wait for the end of a killed worker, which includes the
	// driver's clean-up.
	killWait = 10 * time.Second
	// lastWords is the longest time to wait for the output of a process that has ended. The
	// wait needs a limit, because a process that the worker started may keep the pipe open.
	lastWords = 200 * time.Millisecond
	// mostReplyBytes limits the size of a reply.
	mostReplyBytes = 1 << 20
)

// startWorker starts this program as a worker and waits until its bench is ready.
func startWorker[P comparable](ctx context.Context, h hello, limit time.Duration) (*remote[P], error) {
	exe, err := program()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(exe)
	copy(cmd.Args, os.Args[:min(1, len(os.Args))])
	r := &remote[P]{cmd: cmd, replies: make(chan reply), silent: make(chan struct{}), gone: make(chan struct{}), done: make(chan struct{})}
	if err := r.start(); err != nil {
		return nil, err
	}
	a, err := r.ask(ctx, 0, h, limit)
	if err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// program returns the path of the running program. If the system allows it, the path leads to
// the program that is running, even if an update has replaced its file.
func program() (string, error) {
	const running = "/proc/self/exe"
	if _, err := os.Stat(running); err == nil {
		return running, nil
	}
	return os.Executable()
}

// passed matches the environment variables that a worker inherits: paths and settings of the
// system, and variables that CUDA, Go and this library read. Other variables may hold secrets
// of the program and are not passed.
var passed = regexp.MustCompile(`^(?i:PATH|HOME|USER|USERPROFILE|LOCALAPPDATA|APPDATA|SYSTEMROOT|WINDIR|TMPDIR|TEMP|TMP|LANG|TZ|PTXAS|LC_.*|` +
	`LD_LIBRARY_PATH|CUDA_.*|NVIDIA_.*|XDG_.*|SONICMOE_.*|GO(COVERDIR|DEBUG|GC|MAXPROCS|MEMLIMIT|RACE|TRACEBACK))=`)

// environment returns the variables that a worker inherits.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return !passed.MatchString(v) })
}

// start starts the process with its two pipes.
func (r *remote[P]) start() error {
	theirIn, requests, err := os.Pipe()
	if err != nil {
		return err
	}
	defer theirIn.Close()
	replies, theirOut, err := os.Pipe()
	if err != nil {
		requests.Close()
		return err
	}
	defer theirOut.Close()
	names, err := inherit(r.cmd, theirIn, theirOut)
	if err == nil {
		r.cmd.Env = append(environment(), envWorker+"="+strings.Join(names, ","))
		r.cmd.Stdout, r.cmd.Stderr = &r.said, &r.said
		r.cmd.WaitDelay = lastWords
		err = r.cmd.Start()
	}
	if err != nil {
		requests.Close()
		replies.Close()
		return err
	}
	r.requests = requests
	go r.listen(replies)
	go r.wait()
	return nil
}

// listen passes on the worker's replies until no more can come.
func (r *remote[P]) listen(replies io.ReadCloser) {
	defer close(r.silent)
	defer replies.Close()
	eachReply(replies, func(a reply) bool {
		select {
		case r.replies <- a:
			return true
		case <-r.done:
			return false
		}
	})
}

// eachReply calls the function take for each reply, until take returns false or a line is too long.
// A reply is a line of its own. eachReply skips other lines.
func eachReply(in io.Reader, take func(reply) bool) {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, mostReplyBytes)
	for lines.Scan() {
		var a reply
		if json.Unmarshal(lines.Bytes(), &a) == nil && !take(a) {
			return
		}
	}
}

// wait waits for the end of the process and records it.
func (r *remote[P]) wait() {
	err := r.cmd.Wait()
	r.how = "the worker process ended"
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		r.how += ": " + err.Error()
	}
	if said := r.said.String(); said != "" {
		r.how += "; it said: " + said
	}
	close(r.gone)
}

// ask sends a message and waits for the reply numbered n.
func (r *remote[P]) ask(ctx context.Context, n uint64, message any, limit time.Duration) (reply, error) {
	text, err := json.Marshal(message)
	if err != nil {
		return reply{}, &failure{Wrong, "the message can't be sent to a worker: " + err.Error()}
	}
	// The message is sent by a goroutine, because writing blocks once the pipe is full and the
	// process does not read.
	sent := make(chan error, 1)
	go func() {
		_, err := r.requests.Write(append(text, '\n'))
		sent <- err
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	gone, silent := r.gone, r.silent
	for {
		select {
		case err := <-sent:
			if err != nil { // if the process has ended, its end explains more than the failed write
				r.kill()
				return reply{}, r.died()
			}
		case a := <-r.replies:
			if a.N == n { // other replies are late answers, or were printed by a candidate
				return a, nil
			}
		case <-gone:
			gone = nil // replies sent before the end may still be unread
			timer.Reset(lastWords)
		case <-silent:
			silent = nil
			if gone != nil { // the worker has not ended, but can send no more replies
				r.kill()
			}
			return reply{}, r.died()
		case <-timer.C:
			if gone == nil {
				return reply{}, r.died()
			}
			r.kill()
			return reply{}, &failure{Hung, fmt.Sprintf("no answer in %v; its worker process was killed", limit)}
		case <-ctx.Done():
			r.kill()
			return reply{}, ctx.Err()
		}
	}
}

// died returns the failure that describes the end of the process.
func (r *remote[P]) died() *failure {
	select {
	case <-r.gone:
		return &failure{Died, r.how}
	default:
		return &failure{Died, "the worker process closed its pipe but did not end"}
	}
}

func (r *remote[P]) try(ctx context.Context, op, problem string, p P, limit time.Duration) (time.Duration, error) {
	point, err := json.Marshal(p)
	if err != nil {
		return 0, &failure{Wrong, "the point can't be sent to a worker: " + err.Error()}
	}
	r.last++
	a, err := r.ask(ctx, r.last, request{r.last, op, problem, point}, limit)
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

// kill ends the process and waits for its end, up to killWait.
func (r *remote[P]) kill() {
	_ = r.cmd.Process.Kill() // it may have ended already
	select {
	case <-r.gone:
	case <-time.After(killWait):
	}
}

// close lets the process end by itself, and kills it if it does not.
func (r *remote[P]) close() {
	_ = r.requests.Close()
	select {
	case <-r.gone:
	case <-time.After(time.Second):
		r.kill()
	}
	close(r.done)
}

// tail keeps the last bytes of the worker's output.
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
