//go:build linux && (amd64 || arm64)

package nccl

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// envLibrary is the variable that names NCCL's file if Options.Library is empty.
const envLibrary = "SONICMOE_LIBNCCL"

// minVersion is the oldest supported version, 2.23. It is the first one with
// ncclCommInitRankScalable, which takes the ids by address.
const minVersion = 22300

// function is the index of a function of NCCL.
type function uint8

const (
	getVersion function = iota
	getUniqueID
	commInitRank
	commAsyncError
	commAbort
	commDestroy
	errorString
	lastError
	groupStart
	groupEnd
	send
	recv
	allGather
	functions
)

var names = [functions]string{
	"ncclGetVersion", "ncclGetUniqueId", "ncclCommInitRankScalable", "ncclCommGetAsyncError", "ncclCommAbort", "ncclCommDestroy",
	"ncclGetErrorString", "ncclGetLastError", "ncclGroupStart", "ncclGroupEnd", "ncclSend", "ncclRecv", "ncclAllGather",
}

// Result codes of NCCL.
const (
	success    = 0
	inProgress = 7
)

// library is an opened NCCL library. addr has the address of each function.
type library struct {
	name    string
	version int
	addr    [functions]uintptr
}

var libraries = struct {
	sync.Mutex
	byName map[string]*library
}{byName: map[string]*library{}}

// places lists the files to try. The first one is the bare name, which the system's loader
// resolves. The other ones are in the folders of Python packages.
func places(override string) []string {
	if override != "" {
		return []string{override}
	}
	if env := os.Getenv(envLibrary); env != "" {
		return []string{env}
	}
	list := []string{"libnccl.so.2"}
	var roots []string
	for _, v := range []string{"VIRTUAL_ENV", "CONDA_PREFIX"} {
		if root := os.Getenv(v); root != "" {
			roots = append(roots, root)
		}
	}
	if home, err := os.UserHomeDir(); err == nil {
		roots = append(roots, filepath.Join(home, ".local"))
	}
	for _, root := range append(roots, "/usr/local", "/usr", "/opt/conda") {
		for _, packages := range []string{"site-packages", "dist-packages"} {
			// Glob fails only if the pattern is malformed, which this pattern never is.
			found, _ := filepath.Glob(filepath.Join(root, "lib", "python3*", packages, "nvidia", "nccl", "lib", "libnccl.so.2"))
			list = append(list, found...)
		}
	}
	return list
}

// openLibrary opens the first library in places that the loader finds.
func openLibrary(override string) (*library, error) {
	libraries.Lock()
	defer libraries.Unlock()
	var tried []string
	for _, name := range places(override) {
		if l := libraries.byName[name]; l != nil {
			return l, nil
		}
		handle, err := dlopen(name)
		if err != nil {
			tried = append(tried, fmt.Sprintf("%s (%v)", name, err))
			continue
		}
		l, err := newLibrary(name, handle)
		if err != nil {
			return nil, err
		}
		libraries.byName[name] = l
		return l, nil
	}
	return nil, fmt.Errorf("no NCCL library could be opened; tried %s; install NCCL or the Python package nvidia-nccl-cu13, or name the library in %s",
		strings.Join(tried, ", "), envLibrary)
}

// dlopen opens a library. On failure, purego asks for the reason by a second call, which must be on
// the same thread.
func dlopen(name string) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

func newLibrary(name string, handle uintptr) (*library, error) {
	l := &library{name: name}
	var missing []string
	for f := range functions {
		addr, err := purego.Dlsym(handle, names[f])
		if err != nil || addr == 0 {
			missing = append(missing, names[f])
		}
		l.addr[f] = addr
	}
	// Check the version first, because an old version explains missing functions.
	if l.addr[getVersion] != 0 {
		var v int32
		if err := l.call(getVersion, uintptr(unsafe.Pointer(&v))); err != nil {
			return nil, err
		}
		if l.version = int(v); l.version < minVersion {
			return nil, fmt.Errorf("%s is NCCL %s, %s or newer is needed", name, versionText(l.version), versionText(minVersion))
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%s lacks %s: it is not NCCL %s or newer", name, strings.Join(missing, ", "), versionText(minVersion))
	}
	return l, nil
}

// errInProgress means that a non-blocking call has returned and its work goes on.
var errInProgress = errors.New("in progress")

// call calls a function of NCCL. The caller converts pointers to uintptr in the argument list
// itself, so that the pointers stay valid.
//
//go:uintptrescapes
func (l *library) call(f function, args ...uintptr) error {
	r, _, _ := purego.SyscallN(l.addr[f], args...)
	return l.check(f, int32(r))
}

// check turns a result code of NCCL into an error.
func (l *library) check(f function, r int32) error {
	switch r {
	case success:
		return nil
	case inProgress:
		return errInProgress
	}
	text := "unknown error"
	if l.addr[errorString] != 0 {
		p, _, _ := purego.SyscallN(l.addr[errorString], uintptr(r))
		text = goString(p)
	}
	if l.addr[lastError] != 0 {
		if p, _, _ := purego.SyscallN(l.addr[lastError], 0); p != 0 && goString(p) != "" {
			text += ": " + strings.TrimSpace(goString(p))
		}
	}
	return fmt.Errorf("%s: %s (%d)", names[f], text, r)
}

// goString copies a C string of the library.
func goString(p uintptr) string {
	if p == 0 {
		return ""
	}
	at := *(*unsafe.Pointer)(unsafe.Pointer(&p))
	n := 0
	for *(*byte)(unsafe.Add(at, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(at), n))
}
