package ptx

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// located returns its caller's position: from function here, and from runtime.Callers.
//
//go:noinline
func located() (got *position, want position) {
	got = here()
	runtime.Callers(2, want[:])
	return got, want
}

// inlined is located through a function that the compiler inlines.
func inlined() (*position, position) { return located() }

type locator interface{ at() (*position, position) }

type located1 struct{ by func() (*position, position) }

func (l located1) at() (*position, position) { return l.by() }

// wrapped has method at of its field, which the compiler wraps in a function without a line.
type wrapped struct{ *located1 }

// nested calls f below n more frames, which differ only in the outermost one.
func nested(n int, f func() (*position, position)) (*position, position) {
	if n > 0 {
		return nested(n-1, f)
	}
	return f()
}

// TestHere checks that function here records the frames of runtime.Callers for every kind of call, also
// if it has seen the stack before.
func TestHere(t *testing.T) {
	all := map[*position]bool{}
	calls := map[string]func() (*position, position){
		"direct":  located,
		"inlined": inlined,
		"closure": func() (*position, position) { return inlined() },
		"method":  func() (*position, position) { return locator(wrapped{&located1{inlined}}).at() },
		"generic": func() (*position, position) { return applied(located) },
		"goroutine": func() (got *position, want position) {
			done := make(chan bool)
			go func() { got, want = located(); close(done) }()
			<-done
			return got, want
		},
		"outermost": func() (got *position, want position) {
			done := make(chan bool)
			go func(f func() (*position, position)) { got, want = f(); done <- true }(located)
			<-done
			return got, want
		},
		"deferred": func() (got *position, want position) {
			func() { defer func() { got, want = inlined() }() }()
			return got, want
		},
		"range": func() (got *position, want position) {
			for p, w := range func(yield func(*position, position) bool) { yield(located()) } {
				got, want = p, w
			}
			return got, want
		},
		"deep":    func() (*position, position) { return nested(20, located) },
		"4 deep":  func() (*position, position) { return nested(3, located) },
		"4 lower": func() (*position, position) { return nested(3, located) },
	}
	for name, call := range calls {
		for range 2 {
			got, want := call()
			require.Equal(t, want, *got, name)
			all[got] = true
		}
	}
	require.Len(t, all, len(calls), "each call has one position, which no other call has")
}

func applied[T, U any](f func() (T, U)) (T, U) { return f() }

// TestReturns checks that the walk over a deep stack fills a callStack, and that a shallow one ends.
func TestReturns(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("only amd64 has function returns")
	}
	var deep, shallow callStack
	nested(20, func() (*position, position) { returns(&deep); return nil, position{} })
	require.NotContains(t, deep, uintptr(0))
	done := make(chan bool)
	go func() { returns(&shallow); close(done) }()
	<-done
	require.NotZero(t, shallow[0])
	require.Zero(t, shallow[len(shallow)-1])
	require.Equal(t, "runtime.goexit", runtime.FuncForPC(shallow[1]).Name())
	require.Zero(t, shallow[2])
}
