package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"strings"

	"sonicmoe/examples/internal/command"
	"sonicmoe/internal/disk"
	"sonicmoe/moe/checkpoint/safetensors"
	"sonicmoe/ptx/emu"
)

// maxFile is the largest size of the file of a buffer, in bytes.
const maxFile = 1 << 30

// kinds maps the element types of buffers to their sizes and their names in .npy and
// safetensors files. .npy files have no name for bf16.
var kinds = map[string]struct {
	bytes            int
	npy, safetensors string
}{
	"u32": {4, "<u4", "U32"}, "f32": {4, "<f4", "F32"}, "f16": {2, "<f2", "F16"}, "bf16": {2, "", "BF16"},
}

// readFile returns the elements in the file of a buffer, padded to whole words. A relative path
// starts at the folder of the launch file.
func (b buffer) readFile(ctx context.Context, folder string) ([]byte, error) {
	path := b.File
	if !filepath.IsAbs(path) {
		path = filepath.Join(folder, path)
	}
	data, err := disk.ReadFile(ctx, disk.OS, path, maxFile)
	if err != nil {
		return nil, err
	}
	switch filepath.Ext(path) {
	case ".npy":
		data, err = npy(data)
	case ".safetensors":
		data, err = b.tensor(data)
	default:
		err = errors.New("must end in .npy or .safetensors")
	}
	if err == nil && (len(data) == 0 || len(data)%4 != 0) {
		err = fmt.Errorf("has %d bytes of elements, must have a positive multiple of 4", len(data))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", b.File, err)
	}
	if b.Words != 0 && b.Words != len(data)/4 {
		return nil, fmt.Errorf("%s has %d words, words is %d, must be equal or absent", b.File, len(data)/4, b.Words)
	}
	return data, nil
}

// tensor returns the bytes of the tensor that the buffer names. If the buffer names none, the
// file must have only one tensor.
func (b buffer) tensor(data []byte) ([]byte, error) {
	f, err := safetensors.New(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return nil, err
	}
	name := b.Tensor
	if list := f.Tensors(); name == "" && len(list) == 1 {
		name = list[0].Name
	}
	section, err := f.Section(name)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(section)
}

const npyMagic = "\x93NUMPY"

var (
	npyDescr = regexp.MustCompile(`'descr': *'([^']*)'`)
	npyOrder = regexp.MustCompile(`'fortran_order': *(True|False)`)
)

// npy returns the elements of a .npy file, of any type, in row-major order.
func npy(data []byte) ([]byte, error) {
	le := binary.LittleEndian
	if len(data) < 12 || string(data[:6]) != npyMagic {
		return nil, errors.New("is no .npy file")
	}
	start, size := 10, int(le.Uint16(data[8:])) // version 1 has a length of two bytes, and later versions have four
	if data[6] > 1 {
		start, size = 12, int(min(le.Uint32(data[8:]), maxFile))
	}
	if start+size > len(data) {
		return nil, errors.New("ends within its header")
	}
	header := string(data[start : start+size])
	descr, order := npyDescr.FindStringSubmatch(header), npyOrder.FindStringSubmatch(header)
	switch {
	case descr == nil || order == nil:
		return nil, fmt.Errorf("has the header %.80q, must have descr and fortran_order", header)
	case order[1] == "True":
		return nil, errors.New("has columns (fortran_order), must have rows: numpy.ascontiguousarray")
	case strings.HasPrefix(descr[1], ">") || strings.HasPrefix(descr[1], "|O"):
		return nil, fmt.Errorf("has elements %q, must have little-endian numbers", descr[1])
	}
	return data[start+size:], nil
}

// dump says which buffer is written to which file after the runs.
type dump struct{ buffer, path string }

// parseDump reads "BUFFER=FILE".
func parseDump(text string) (dump, error) {
	name, path, ok := strings.Cut(text, "=")
	if ext := filepath.Ext(path); !ok || name == "" || ext != ".npy" && ext != ".safetensors" && ext != ".bin" {
		return dump{}, command.Usagef("-dump %s, must be BUFFER=FILE, and the file end in .npy, .safetensors or .bin", text)
	}
	return dump{name, path}, nil
}

// checkDumps returns an error if a buffer in the list cannot be written.
func (l *launch) checkDumps(list []dump) error {
	for _, d := range list {
		b, ok := l.Buffers[d.buffer]
		if !ok {
			return fmt.Errorf("-dump %s=%s: there is no buffer of that name", d.buffer, d.path)
		}
		if filepath.Ext(d.path) == ".npy" && kinds[b.Type].npy == "" {
			return fmt.Errorf("-dump %s=%s: .npy files have no %s, must end in .safetensors or .bin", d.buffer, d.path, b.Type)
		}
	}
	return nil
}

// write writes the buffer to its file.
func (d dump) write(l *launch, m *emu.Memory, at map[string]uint64) error {
	b := l.Buffers[d.buffer]
	data := make([]byte, 4*b.Words)
	if err := m.Read(data, at[d.buffer]); err != nil {
		return err
	}
	kind := kinds[b.Type]
	count := len(data) / kind.bytes
	return disk.WriteFile(disk.OS, d.path, 0o644, func(w io.Writer) error {
		switch filepath.Ext(d.path) {
		case ".safetensors":
			return safetensors.Write(w, nil, safetensors.Source{Name: d.buffer, DType: kind.safetensors, Shape: []int64{int64(count)}, Data: bytes.NewReader(data)})
		case ".npy":
			// The header ends with a line feed, and the data begins at a multiple of 64 bytes.
			header := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%d,), }", kind.npy, count)
			header += strings.Repeat(" ", 63-(10+len(header))%64) + "\n"
			if _, err := fmt.Fprintf(w, "%s\x01\x00%s%s", npyMagic, binary.LittleEndian.AppendUint16(nil, uint16(len(header))), header); err != nil {
				return err
			}
		}
		_, err := w.Write(data)
		return err
	})
}
