package weights

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"sonicmoe/internal/spec"
	"sonicmoe/moe/checkpoint/safetensors"
)

// lay sets the layout of the experts in the Config to the layout in the files, which may differ
// from the layout in transformers.
func (l *Layer) lay(ctx context.Context) error {
	if l.Config.Activation.Gated() && l.parts[spec.TensorW3] != nil {
		l.Config.GateUp = spec.Apart
	}
	experts := slices.Concat(l.parts[spec.TensorW1], l.parts[spec.TensorW3], l.parts[spec.TensorW2])
	if at := slices.IndexFunc(experts, part.isBlocks); at >= 0 {
		l.Config.InOut = false // blocks are [out, in]
		plain := slices.IndexFunc(experts, func(p part) bool { return !p.isBlocks() })
		if plain >= 0 {
			return fmt.Errorf("tensor %q is MXFP4 and %q is not: all of a layer's experts must be, or none", experts[at].name, experts[plain].name)
		}
		return nil
	}
	if l.Config.InOut {
		return nil
	}
	// The files of Qwen3-VL have matrices [in, out], and transformers transposes them. The extents
	// of a square matrix do not show its order. But if W1 is square, 2n = d, then W2 is not.
	straight, err := l.lies(ctx, experts, false)
	if err != nil || straight {
		return err
	}
	across, err := l.lies(ctx, experts, true)
	if across {
		l.Config.InOut = true
	}
	return err
}

// lies reports whether the tensors of all experts have the extents of a layout.
func (l *Layer) lies(ctx context.Context, experts []part, inOut bool) (bool, error) {
	as := *l
	as.Config.InOut = inOut
	for _, p := range experts {
		if p.expert >= 0 || p.piece != whole {
			continue
		}
		t, err := l.header(ctx, p.name)
		if err != nil {
			return false, err
		}
		if !slices.Equal(t.Shape, as.dims(p, 0)) {
			return false, nil
		}
	}
	return true, nil
}

// header returns the description of a tensor from the header of its file: name, dtype and extents.
func (l *Layer) header(ctx context.Context, name string) (safetensors.Tensor, error) {
	f, err := l.file(ctx, name)
	if err != nil {
		return safetensors.Tensor{}, err
	}
	return f.Tensor(name)
}

// cover checks that the parts of a weight together give each of its elements exactly once.
func (l *Layer) cover(id spec.TensorID, s spec.Shape) error {
	type run struct {
		at, count int64
		name      string
	}
	var runs []run
	var scale []part
	packed := false
	for _, p := range l.parts[id] {
		if p.piece == scales {
			scale = append(scale, p)
			continue
		}
		packed = packed || p.piece == blocks
		at, count, err := l.place(p, s)
		if err != nil {
			return err
		}
		runs = append(runs, run{at, count, p.name})
	}
	slices.SortStableFunc(runs, func(a, b run) int { return cmp.Compare(a.at, b.at) })
	filled := int64(0)
	for i, r := range runs {
		if filled += r.count; i > 0 && r.at < runs[i-1].at+runs[i-1].count {
			return fmt.Errorf("tensors %q and %q are the same part of %s, must be one", runs[i-1].name, r.name, id)
		}
	}
	switch {
	case len(scale) > 1:
		return fmt.Errorf("tensors %q and %q are both the scales of %s, must be one", scale[0].name, scale[1].name, id)
	case len(scale) == 1 && !packed:
		return fmt.Errorf("tensor %q is there without its blocks", scale[0].name)
	case filled != s.Elements():
		var missing string
		if len(runs) > 0 && l.parts[id][0].expert >= 0 {
			end := int64(0)
			for _, r := range runs {
				if r.at > end {
					break
				}
				end = r.at + r.count
			}
			missing = fmt.Sprintf(": expert %d lacks a tensor", end/(s.Elements()/int64(l.Config.NumExperts)))
		}
		return fmt.Errorf("the files have %d elements of %s, must have %d (%v)%s", filled, id, s.Elements(), s, missing)
	}
	return nil
}

// place returns the offset of a part in its weight and the number of elements of the part.
func (l *Layer) place(p part, s spec.Shape) (at, count int64, err error) {
	if p.expert < 0 {
		return 0, s.Elements(), nil
	}
	if p.expert >= l.Config.NumExperts {
		return 0, 0, fmt.Errorf("tensor %q is of expert %d, config.json has %d", p.name, p.expert, l.Config.NumExperts)
	}
	gated := l.Config.Activation.Gated()
	isHalf := p.tensor == spec.TensorW1 && p.piece != whole
	if l.Config.InOut || gated && isHalf && l.Config.GateUp != spec.Concatenated {
		return 0, 0, fmt.Errorf("tensor %q has one expert, must have all experts of %v", p.name, l.Config)
	}
	each := s.Elements() / int64(l.Config.NumExperts)
	at, count = int64(p.expert)*each, each
	if isHalf && gated {
		count /= 2
		if p.piece == up {
			at += count
		}
	}
	return at, count, nil
}
