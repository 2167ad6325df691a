package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	"sonicmoe/driver"
)

// chunkBytes is the size of the pieces in which a tensor passes through host memory.
const chunkBytes = 64 << 20

// memory is device memory, with the stream that fills and reads it.
type memory struct {
	dev    driver.Device
	stream driver.Stream
	chunk  int // bytes
	buf    []byte
	owned  []driver.DevicePtr
}

func newMemory(dev driver.Device, chunk int) (*memory, error) {
	stream, err := dev.NewStream()
	if err != nil {
		return nil, err
	}
	return &memory{dev: dev, stream: stream, chunk: chunk}, nil
}

// Close frees all memory.
func (m *memory) Close() error {
	var errs []error
	for _, p := range m.owned {
		errs = append(errs, m.dev.Free(p))
	}
	m.owned = nil
	return errors.Join(append(errs, m.stream.Close())...)
}

// alloc allocates at least one byte. name is for errors.
func (m *memory) alloc(name string, bytes int64) (driver.DevicePtr, error) {
	p, err := m.dev.Alloc(max(bytes, 1))
	if err != nil {
		return 0, fmt.Errorf("%d bytes of device memory for %s: %w", bytes, name, err)
	}
	m.owned = append(m.owned, p)
	return p, nil
}

// load copies a tensor of a file to the device, piece by piece. The tensor consists of blocks
// of block bytes. On the device, the blocks begin stride bytes apart.
func (m *memory) load(ctx context.Context, dst driver.DevicePtr, s source, name string, block, stride int64) error {
	section, err := s.Section(name)
	if err != nil {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	size := section.Size()
	if m.buf == nil {
		m.buf = make([]byte, m.chunk)
	}
	for off := int64(0); off < size; {
		if err := ctx.Err(); err != nil {
			return err
		}
		part := m.buf[:min(size-off, int64(len(m.buf)))]
		if _, err := io.ReadFull(section, part); err != nil {
			return fmt.Errorf("%s: reading tensor %q at byte %d of %d: %w", s.path, name, off, size, err)
		}
		if err := m.scatter(dst, part, off, block, stride); err != nil {
			return fmt.Errorf("%s: copying tensor %q to the device: %w", s.path, name, err)
		}
		off += int64(len(part))
	}
	return nil
}

// scatter copies part, the bytes of a tensor from offset off on, to the places of their blocks
// on the device.
func (m *memory) scatter(dst driver.DevicePtr, part []byte, off, block, stride int64) error {
	for len(part) > 0 {
		within := off % block
		n := min(block-within, int64(len(part)))
		if err := m.stream.CopyToDevice(at(dst, off/block*stride+within), part[:n]); err != nil {
			return err
		}
		part, off = part[n:], off+n
	}
	return nil
}

// reader returns a stream of bytes of device memory. It reads the first block bytes of every
// stride bytes, one chunk at a time.
func (m *memory) reader(src driver.DevicePtr, bytes, block, stride int64) io.Reader {
	r := &deviceReader{stream: m.stream, src: src, bytes: bytes, block: block, stride: stride}
	return bufio.NewReaderSize(r, int(min(max(bytes, 1), int64(m.chunk))))
}

// deviceReader reads device memory. A bufio.Reader reads whole chunks from it.
type deviceReader struct {
	stream        driver.Stream
	src           driver.DevicePtr
	off, bytes    int64 // bytes already read, and bytes to read in all
	block, stride int64
}

func (r *deviceReader) Read(p []byte) (int, error) {
	if r.off == r.bytes {
		return 0, io.EOF
	}
	within := r.off % r.block
	p = p[:min(r.bytes-r.off, r.block-within, int64(len(p)))]
	if err := r.stream.CopyToHost(p, at(r.src, r.off/r.block*r.stride+within)); err != nil {
		return 0, err
	}
	r.off += int64(len(p))
	return len(p), nil
}

// at returns the address that is a number of bytes after p.
func at(p driver.DevicePtr, bytes int64) driver.DevicePtr { return p + driver.DevicePtr(bytes) }
