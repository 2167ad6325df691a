//go:build cgo && linux

package main

// #include <stdio.h>
// #include <stdlib.h>
// #include <string.h>
// #include <pthread.h>
// #include <stdint.h>
// static uintptr_t this_thread(void) { return (uintptr_t)pthread_self(); }
import "C"

import (
	"sync"
	"unsafe"
)

// at converts an address in the program's memory to a pointer. It is not inlined: where it is, the
// compiler of Go 1.26 fails on a copy to the pointer.
//
//go:noinline
func at(address uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&address)) }

// hostBytes returns the n bytes at an address of the program's memory. They are not copied.
func hostBytes(address uintptr, n int) []byte { return unsafe.Slice((*byte)(at(address)), n) }

// hostText returns the C string at an address of the program's memory.
func hostText(address uintptr) string { return C.GoString((*C.char)(at(address))) }

// put stores a value at an address of the program's memory.
func put[T any](address uintptr, v T) { *(*T)(at(address)) = v }

// printOut writes the text of a kernel's printf to the program's standard output.
func printOut(text string) {
	s := C.CString(text)
	defer C.free(unsafe.Pointer(s))
	C.fwrite(unsafe.Pointer(s), 1, C.size_t(len(text)), C.stdout)
}

// pinned is memory of the host that kernels access at the host's address.
type pinned struct {
	bytes   int
	owned   bool // allocated by the library
	managed bool
	flags   uint32
}

// pageBytes is the alignment of memory that host and device share.
const pageBytes = 4096

// share allocates memory that the program and kernels share.
func (d *device) share(bytes uint64, managed bool, flags uint32) (uintptr, error) {
	if bytes == 0 {
		return 0, invalidValue.plain()
	}
	var p unsafe.Pointer
	if bytes > memoryBytes || C.posix_memalign(&p, pageBytes, C.size_t(bytes)) != 0 {
		return 0, outOfMemory.plain()
	}
	C.memset(p, 0, C.size_t(bytes))
	return uintptr(p), d.pin(uintptr(p), pinned{int(bytes), true, managed, flags})
}

// pin makes memory of the host visible to kernels.
func (d *device) pin(address uintptr, p pinned) error {
	if err := d.mem.Map(uint64(address), hostBytes(address, p.bytes)); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pinned[address] = p
	return nil
}

// unpin takes memory from kernels again. If owned is true, share has allocated the memory, and unpin
// frees it.
func (d *device) unpin(address uintptr, owned bool) error {
	if address == 0 {
		return nil
	}
	d.mu.Lock()
	p, ok := d.pinned[address]
	d.mu.Unlock()
	if !ok || p.owned != owned {
		return failed(invalidValue, "%#x is not the address of memory that host and device share", address)
	}
	d.work.Lock()
	defer d.work.Unlock()
	if err := d.mem.Free(uint64(address)); err != nil {
		return err
	}
	d.mu.Lock()
	delete(d.pinned, address)
	d.mu.Unlock()
	if owned {
		C.free(at(address))
	}
	return nil
}

// pinnedAt returns the memory of the host that contains an address and is visible to kernels.
func (d *device) pinnedAt(address uintptr) (p pinned, ok bool) {
	base, _, ok := d.mem.Range(uint64(address))
	if !ok {
		return p, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p, ok = d.pinned[uintptr(base)]
	return p, ok
}

// thread identifies the thread of the program that calls the library.
func thread() uintptr { return uintptr(C.this_thread()) }

// ptrOf converts a pointer to an unsafe.Pointer.
func ptrOf[T any](p *T) unsafe.Pointer { return unsafe.Pointer(p) }

// addresses returns a list of n addresses of the program.
func addresses(list *uintptr, n int) []uintptr { return unsafe.Slice(list, n) }

// texts keeps a C string for each text.
type texts struct {
	sync.Mutex
	strings map[string]*C.char
}

func newConstants() *texts { return &texts{strings: map[string]*C.char{}} }

// of returns the C string of a text. An empty text stands for an unknown error code.
func (t *texts) of(s string) *C.char {
	if s == "" {
		s = "unrecognized error code"
	}
	t.Lock()
	defer t.Unlock()
	c, ok := t.strings[s]
	if !ok {
		c = C.CString(s)
		t.strings[s] = c
	}
	return c
}
