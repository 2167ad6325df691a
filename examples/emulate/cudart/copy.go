//go:build cgo && linux

package main

// #include "cuda.h"
import "C"

import (
	"bytes"
)

// Directions of copies, with the numbers of cudaMemcpyKind.
const (
	hostToHost     = 0
	hostToDevice   = 1
	deviceToHost   = 2
	deviceToDevice = 3
	anyDirection   = 4
)

// block is the place in memory of a box of bytes. A box has layers, and a layer has rows.
type block struct {
	at           uintptr
	pitch, layer uintptr // bytes between the starts of two rows, and of two layers
}

// isDevice reports whether an address is in memory that kernels can access.
func (d *device) isDevice(p uintptr) bool {
	_, _, ok := d.mem.Range(uint64(p))
	return ok
}

// move copies n bytes. The addresses tell whether each side is memory of the host or of the device.
func (d *device) move(to, from uintptr, n int) error {
	switch toDevice, fromDevice := d.isDevice(to), d.isDevice(from); {
	case n == 0:
		return nil
	case toDevice && fromDevice:
		return d.mem.Copy(uint64(to), uint64(from), int64(n))
	case toDevice:
		return d.mem.Write(uint64(to), hostBytes(from, n))
	case fromDevice:
		return d.mem.Read(hostBytes(to, n), uint64(from))
	}
	copy(hostBytes(to, n), hostBytes(from, n))
	return nil
}

// direct checks that the addresses of a copy fit the direction kind.
func (d *device) direct(to, from uintptr, kind int32) error {
	wantTo, wantFrom := kind == hostToDevice || kind == deviceToDevice, kind == deviceToHost || kind == deviceToDevice
	switch {
	case kind < hostToHost || kind > anyDirection:
		return failed(invalidValue, "direction %d, want 0 to 4", kind)
	case wantTo && !d.isDevice(to):
		return failed(invalidValue, "destination %#x is not device memory", to)
	case wantFrom && !d.isDevice(from):
		return failed(invalidValue, "source %#x is not device memory", from)
	}
	for _, side := range []struct {
		name   string
		p      uintptr
		isHost bool
	}{{"destination", to, kind == deviceToHost || kind == hostToHost}, {"source", from, kind == hostToDevice || kind == hostToHost}} {
		if side.isHost && d.typeOf(side.p) == deviceMemory {
			return failed(invalidValue, "%s %#x is device memory, but direction %d says host", side.name, side.p, kind)
		}
	}
	return nil
}

// copyNode returns a node that copies a box of depth layers. A layer has height rows of width bytes.
func (d *device) copyNode(to, from block, width, height, depth uintptr, kind int32) *node {
	return &node{kind: nodeCopy, run: func() error {
		if width == 0 || height == 0 || depth == 0 {
			return nil
		}
		if err := d.direct(to.at, from.at, kind); err != nil {
			return err
		}
		for z := range depth {
			for y := range height {
				if err := d.move(to.at+z*to.layer+y*to.pitch, from.at+z*from.layer+y*from.pitch, int(width)); err != nil {
					return err
				}
			}
		}
		return nil
	}}
}

// fillNode returns a node that fills a box with elements of 1, 2 or 4 bytes. A row has width elements.
func (d *device) fillNode(to block, value uint32, element, width, height, depth uintptr) *node {
	return &node{kind: nodeFill, run: func() error {
		unit := []byte{byte(value), byte(value >> 8), byte(value >> 16), byte(value >> 24)}[:element]
		row := bytes.Repeat(unit, int(width))
		for z := range depth {
			for y := range height {
				if p := to.at + z*to.layer + y*to.pitch; len(row) > 0 {
					if !d.isDevice(p) {
						return failed(invalidValue, "%#x is not device memory", p)
					}
					if err := d.mem.Write(uint64(p), row); err != nil {
						return err
					}
				}
			}
		}
		return nil
	}}
}

// queue runs work in a stream, or adds it to the graph that captures the stream.
func (d *device) queue(stream uintptr, n *node) error {
	s, err := look(d, d.streams, stream, "stream")
	if err != nil {
		return err
	}
	_, err = s.do(n)
	return err
}

func (d *device) copy(to, from, n uintptr, kind int32, stream uintptr) error {
	return d.queue(stream, d.copyNode(block{at: to}, block{at: from}, n, 1, 1, kind))
}

//export cudaMemcpy
func cudaMemcpy(to, from, n uintptr, kind int32) int32 {
	return result("cudaMemcpy", dev().copy(to, from, n, kind, 0))
}

//export cudaMemcpyAsync
func cudaMemcpyAsync(to, from, n uintptr, kind int32, stream uintptr) int32 {
	return result("cudaMemcpyAsync", dev().copy(to, from, n, kind, stream))
}

//export cudaMemcpyPeer
func cudaMemcpyPeer(to uintptr, ignored1 int32, from uintptr, ignored2 int32, n uintptr) int32 {
	return result("cudaMemcpyPeer", dev().copy(to, from, n, anyDirection, 0))
}

//export cudaMemcpyPeerAsync
func cudaMemcpyPeerAsync(to uintptr, ignored1 int32, from uintptr, ignored2 int32, n, stream uintptr) int32 {
	return result("cudaMemcpyPeerAsync", dev().copy(to, from, n, anyDirection, stream))
}

//export cudaMemcpy2D
func cudaMemcpy2D(to, toPitch, from, fromPitch, width, height uintptr, kind int32) int32 {
	return cudaMemcpy2DAsync(to, toPitch, from, fromPitch, width, height, kind, 0)
}

//export cudaMemcpy2DAsync
func cudaMemcpy2DAsync(to, toPitch, from, fromPitch, width, height uintptr, kind int32, stream uintptr) int32 {
	d := dev()
	if width > toPitch || width > fromPitch {
		return result("cudaMemcpy2D", failed(invalidValue, "rows of %d bytes at distances of %d and %d, want no less than a row", width, toPitch, fromPitch))
	}
	return result("cudaMemcpy2D", d.queue(stream, d.copyNode(block{at: to, pitch: toPitch}, block{at: from, pitch: fromPitch}, width, height, 1, kind)))
}

// boxOf returns the source or the destination of a three-dimensional copy.
func boxOf(p C.pitched_ptr, pos C.extent) block {
	b := block{pitch: uintptr(p.pitch), layer: uintptr(p.pitch * p.height)}
	b.at = uintptr(p.at) + uintptr(pos.width) + uintptr(pos.height)*b.pitch + uintptr(pos.depth)*b.layer
	return b
}

// copy3D returns the node of a three-dimensional copy.
func (d *device) copy3D(p *C.copy_3d) (*node, error) {
	if p.from_array != 0 || p.to_array != 0 {
		return nil, failed(notSupported, "copies of CUDA arrays are not emulated")
	}
	return d.copyNode(boxOf(p.to, p.to_pos), boxOf(p.from, p.from_pos), uintptr(p.size.width), uintptr(p.size.height), uintptr(p.size.depth), int32(p.kind)), nil
}

//export cudaMemcpy3D
func cudaMemcpy3D(p *C.copy_3d) int32 { return cudaMemcpy3DAsync(p, 0) }

//export cudaMemcpy3DAsync
func cudaMemcpy3DAsync(p *C.copy_3d, stream uintptr) int32 {
	d := dev()
	n, err := d.copy3D(p)
	if err == nil {
		err = d.queue(stream, n)
	}
	return result("cudaMemcpy3D", err)
}

// symbolNode returns a node that copies n bytes to or from a variable of the program's device code.
func (d *device) symbolNode(symbol, host, n, offset uintptr, kind int32, toSymbol bool) (*node, error) {
	at, bytes, err := d.place(symbol)
	switch {
	case err != nil:
		return nil, err
	case offset > uintptr(bytes) || n > uintptr(bytes)-offset:
		return nil, failed(invalidValue, "%d bytes at offset %d of a variable of %d bytes", n, offset, bytes)
	case toSymbol:
		return d.copyNode(block{at: at + offset}, block{at: host}, n, 1, 1, kind), nil
	}
	return d.copyNode(block{at: host}, block{at: at + offset}, n, 1, 1, kind), nil
}

func (d *device) copySymbol(op string, symbol, host, n, offset uintptr, kind int32, toSymbol bool, stream uintptr) int32 {
	w, err := d.symbolNode(symbol, host, n, offset, kind, toSymbol)
	if err == nil {
		err = d.queue(stream, w)
	}
	return result(op, err)
}

//export cudaMemcpyToSymbol
func cudaMemcpyToSymbol(symbol, from, n, offset uintptr, kind int32) int32 {
	return dev().copySymbol("cudaMemcpyToSymbol", symbol, from, n, offset, kind, true, 0)
}

//export cudaMemcpyToSymbolAsync
func cudaMemcpyToSymbolAsync(symbol, from, n, offset uintptr, kind int32, stream uintptr) int32 {
	return dev().copySymbol("cudaMemcpyToSymbolAsync", symbol, from, n, offset, kind, true, stream)
}

//export cudaMemcpyFromSymbol
func cudaMemcpyFromSymbol(to, symbol, n, offset uintptr, kind int32) int32 {
	return dev().copySymbol("cudaMemcpyFromSymbol", symbol, to, n, offset, kind, false, 0)
}

//export cudaMemcpyFromSymbolAsync
func cudaMemcpyFromSymbolAsync(to, symbol, n, offset uintptr, kind int32, stream uintptr) int32 {
	return dev().copySymbol("cudaMemcpyFromSymbolAsync", symbol, to, n, offset, kind, false, stream)
}

//export cudaMemset
func cudaMemset(to uintptr, value int32, n uintptr) int32 { return cudaMemsetAsync(to, value, n, 0) }

//export cudaMemsetAsync
func cudaMemsetAsync(to uintptr, value int32, n, stream uintptr) int32 {
	d := dev()
	return result("cudaMemset", d.queue(stream, d.fillNode(block{at: to}, uint32(value), 1, n, 1, 1)))
}

//export cudaMemset2D
func cudaMemset2D(to, pitch uintptr, value int32, width, height uintptr) int32 {
	return cudaMemset2DAsync(to, pitch, value, width, height, 0)
}

//export cudaMemset2DAsync
func cudaMemset2DAsync(to, pitch uintptr, value int32, width, height, stream uintptr) int32 {
	d := dev()
	return result("cudaMemset2D", d.queue(stream, d.fillNode(block{at: to, pitch: pitch}, uint32(value), 1, width, height, 1)))
}

//export cudaMemset3D
func cudaMemset3D(p C.pitched_ptr, value int32, size C.extent) int32 {
	d := dev()
	return result("cudaMemset3D", d.queue(0, d.fillNode(boxOf(p, C.extent{}), uint32(value), 1, uintptr(size.width), uintptr(size.height), uintptr(size.depth))))
}
