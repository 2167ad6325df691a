package cuda

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"unsafe"

	"sonicmoe/driver"
)

// EnvLibrary is the environment variable that names the driver library if
// [Options] does not.
const EnvLibrary = "SONICMOE_LIBCUDA"

// minVersion is the oldest supported driver version, CUDA 12.0. It is the first to support PTX
// 8.0, which Hopper's instructions need.
const minVersion = 12000

// library is an opened driver library.
type library struct {
	name    string // the name under which it was opened
	version int    // 13000 for CUDA 13.0
	build   string // the build of that version, such as "580.95.05", or "" if it is not known
	addr    [symbolCount]uintptr
	// bound and loadModule come from a Binding. They are called instead of the functions at
	// addr.
	bound      [symbolCount]func(args []uintptr) int
	loadModule func(image []byte) (module uintptr, code int)
}

// attempt is the result of trying to open a library by one name.
type attempt struct {
	Name string
	Err  error // nil if it was opened
}

var libraries = struct {
	sync.Mutex
	byName map[string]*library
}{byName: map[string]*library{}}

// names returns the library names to try, in order.
func names(override string) []string {
	if override != "" {
		return []string{override}
	}
	if env := os.Getenv(EnvLibrary); env != "" {
		return []string{env}
	}
	return defaultNames
}

// openLibrary opens the first library of names that exists, resolves its functions and
// initialises it. It returns all its attempts, also with an error.
func openLibrary(override string) (*library, []attempt, error) {
	libraries.Lock()
	defer libraries.Unlock()
	var tried []attempt
	for _, name := range names(override) {
		if l := libraries.byName[name]; l != nil {
			return l, append(tried, attempt{Name: name}), nil
		}
		handle, err := dlopen(name)
		tried = append(tried, attempt{name, err})
		if err != nil {
			continue
		}
		l, err := newLibrary(name, handle)
		if err != nil {
			return nil, tried, err
		}
		libraries.byName[name] = l
		return l, tried, nil
	}
	return nil, tried, notFound(tried)
}

func notFound(tried []attempt) error {
	var b strings.Builder
	b.WriteString("no CUDA driver library could be opened; tried ")
	for i, a := range tried {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s (%v)", a.Name, a.Err)
	}
	b.WriteString("; install NVIDIA's driver, or name its library in " + EnvLibrary)
	return errors.New(b.String())
}

// newLibrary resolves the functions of an opened library and initialises it.
func newLibrary(name string, handle uintptr) (*library, error) {
	l := &library{name: name}
	var missing []string
	for s := range symbolCount {
		addr, err := dlsym(handle, s.String())
		if err != nil {
			addr = 0
		}
		if addr == 0 && symbols[s].neededFor == "" {
			missing = append(missing, s.String())
		}
		l.addr[s] = addr
	}
	// The version is checked first, because an old version explains missing functions better
	// than a list of their names.
	if l.addr[symDriverGetVersion] != 0 {
		var v int32
		if r := l.call(symDriverGetVersion, uintptr(unsafe.Pointer(&v))); r != success {
			return nil, l.failure(symDriverGetVersion, r)
		}
		l.version = int(v)
		if l.version < minVersion {
			return nil, fmt.Errorf("%s is a driver for CUDA %s, %s or newer is needed: update NVIDIA's driver",
				name, versionText(l.version), versionText(minVersion))
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%s lacks %s: it is not a complete CUDA driver library of version %s or newer",
			name, strings.Join(missing, ", "), versionText(minVersion))
	}
	l.build = buildOf(l.addr[symDriverGetVersion])
	if r := l.call(symInit, 0); r != success {
		return nil, fmt.Errorf("%s (CUDA %s) found no usable GPU: %w", name, versionText(l.version), l.failure(symInit, r))
	}
	return l, nil
}

// versionText writes a version in the driver's form as text: 12080 as 12.8.
func versionText(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }

// call calls a function of the library. Convert pointers to uintptr in the argument list
// itself. This keeps the objects alive and in place until call returns.
//
//go:uintptrescapes
func (l *library) call(s symbol, args ...uintptr) result {
	return l.callSlice(s, args)
}

// callSlice is call for arguments that point to heap objects which the caller keeps alive. It
// allocates nothing.
func (l *library) callSlice(s symbol, args []uintptr) result {
	if f := l.bound[s]; f != nil {
		return result(f(args))
	}
	if l.addr[s] == 0 {
		return missingSymbol
	}
	return result(int32(syscallN(l.addr[s], args)))
}

// failure returns the error of a call of s that returned r.
func (l *library) failure(s symbol, r result) *driver.Error {
	if r == missingSymbol {
		return &driver.Error{Op: s.String(), Kind: driver.ErrUnsupported,
			Text: fmt.Sprintf("%s (CUDA %s) lacks this function, which %s needs: update NVIDIA's driver",
				l.name, versionText(l.version), symbols[s].neededFor)}
	}
	return &driver.Error{Op: s.String(), Code: int(r), Name: l.errorText(symGetErrorName, r),
		Text: l.errorText(symGetErrorString, r), Kind: r.kind()}
}

func (l *library) errorText(s symbol, r result) string {
	var text *byte
	if l.call(s, uintptr(r), uintptr(unsafe.Pointer(&text))) != success || text == nil {
		return "unknown error"
	}
	return goString(text)
}

// goString copies a C string.
func goString(p *byte) string {
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}
