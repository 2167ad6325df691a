package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"sonicmoe/internal/num"
	"sonicmoe/ptx/emu"
)

// mostWrong is the number of wrong elements that an error shows.
const mostWrong = 5

// wrong returns an error if a buffer does not have the numbers that the launch file wants.
func (l *launch) wrong(ctx context.Context, m *emu.Memory, at map[string]uint64) error {
	for _, name := range slices.Sorted(maps.Keys(l.Buffers)) {
		b := l.Buffers[name]
		if b.Want == "" {
			continue
		}
		want, err := buffer{File: b.Want, Tensor: b.WantTensor, Type: b.Type}.readFile(ctx, l.folder)
		if err != nil {
			return fmt.Errorf("buffer %s: want: %w", name, err)
		}
		if len(want) > 4*b.Words {
			return fmt.Errorf("buffer %s: want %s has %d words, must have at most %d", name, b.Want, len(want)/4, b.Words)
		}
		got := make([]byte, len(want))
		if err := m.Read(got, at[name]); err != nil {
			return err
		}
		if err := b.compare(got, want); err != nil {
			return fmt.Errorf("buffer %s: %w", name, err)
		}
	}
	return nil
}

// compare returns an error if an element differs from the wanted one by more than the tolerance.
func (b buffer) compare(got, want []byte) error {
	size := kinds[b.Type].bytes
	var list []string
	count := 0
	for i := 0; i < len(want); i += size {
		g, w := b.number(got[i:]), b.number(want[i:])
		if g == w || math.IsNaN(g) && math.IsNaN(w) || math.Abs(g-w) <= b.Tolerance*(1+math.Abs(w)) {
			continue
		}
		if count++; count <= mostWrong {
			list = append(list, fmt.Sprintf("[%d] is %s, want %s", i/size, b.text(g), b.text(w)))
		}
	}
	if count == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d elements are wrong: %s", count, len(want)/size, strings.Join(list, "; "))
}

// text returns a number of the buffer's type as text.
func (b buffer) text(number float64) string {
	if b.Type == "u32" {
		return strconv.FormatFloat(number, 'f', -1, 64)
	}
	return strconv.FormatFloat(number, 'g', -1, 32)
}

// number returns the number with which b begins.
func (b buffer) number(data []byte) float64 {
	le := binary.LittleEndian
	switch b.Type {
	case "f32":
		return float64(math.Float32frombits(le.Uint32(data)))
	case "bf16":
		return float64(num.BF16ToFloat32(le.Uint16(data)))
	case "f16":
		return float64(num.F16ToFloat32(le.Uint16(data)))
	}
	return float64(le.Uint32(data))
}
