package weights

import (
	"cmp"
	"fmt"
	"slices"

	"sonicmoe/examples/layer/safetensors"
	"sonicmoe/internal/spec"
)

// lay has the Config say how the experts' matrices lie in the files, where that
// is not how the family keeps them.
func (l *Layer) lay() error {
	if l.Config.Activation.Gated() && l.parts["W3"] != nil {
		l.Config.GateUp = spec.Apart
	}
	experts := slices.Concat(l.parts["W1"], l.parts["W3"], l.parts["W2"])
	packed := func(p part) bool { return p.piece == blocks || p.piece == scales }
	if at := slices.IndexFunc(experts, packed); at >= 0 {
		l.Config.WeightOrder = spec.OutIn // which blocks are in
		plain := slices.IndexFunc(experts, func(p part) bool { return !packed(p) })
		if plain >= 0 {
			return fmt.Errorf("tensor %q is MXFP4 and %q is not: all of a layer's experts must be, or none", experts[at].name, experts[plain].name)
		}
		return nil
	}
	if l.Config.WeightOrder != spec.OutIn {
		return nil
	}
	// Qwen3-VL's are [in, out], and transformers turns them. A square tells nothing,
	// but where W1 has gate and up, 2n rows for d columns, W2 is not square beside it.
	straight, err := l.lies(experts, spec.OutIn)
	if err != nil || straight {
		return err
	}
	across, err := l.lies(experts, spec.InOut)
	if across {
		l.Config.WeightOrder = spec.InOut
	}
	return err
}

// lies reports whether the matrices of all experts in one have the extents of an order.
func (l *Layer) lies(experts []part, order spec.WeightOrder) (bool, error) {
	as := *l
	as.Config.WeightOrder = order
	for _, p := range experts {
		if p.expert >= 0 || p.piece != whole {
			continue
		}
		t, err := l.header(p.name)
		if err != nil {
			return false, err
		}
		if !slices.Equal(t.Shape, as.dims(p, 0)) {
			return false, nil
		}
	}
	return true, nil
}

// header is a tensor's name, type and extents.
func (l *Layer) header(name string) (safetensors.Tensor, error) {
	f, err := l.file(name)
	if err != nil {
		return safetensors.Tensor{}, err
	}
	return f.Tensor(name)
}

// cover checks that the parts of a weight fill it, each element once.
func (l *Layer) cover(name string, s spec.Shape) error {
	type run struct {
		at, count int64
		name      string
	}
	var runs []run
	var scale []part
	packed := false
	for _, p := range l.parts[name] {
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
			return fmt.Errorf("tensors %q and %q are the same part of %s, must be one", runs[i-1].name, r.name, name)
		}
	}
	switch {
	case len(scale) > 1:
		return fmt.Errorf("tensors %q and %q are both the scales of %s, must be one", scale[0].name, scale[1].name, name)
	case len(scale) == 1 && !packed:
		return fmt.Errorf("tensor %q is there without its blocks", scale[0].name)
	case filled != s.Elements():
		return fmt.Errorf("the files have %d elements of %s, must have %d (%v)", filled, name, s.Elements(), s)
	}
	return nil
}

// place is where in its tensor a part stands, and how many elements it has.
func (l *Layer) place(p part, s spec.Shape) (at, count int64, err error) {
	if p.expert < 0 {
		return 0, s.Elements(), nil
	}
	if p.expert >= l.Config.NumExperts {
		return 0, 0, fmt.Errorf("tensor %q is of expert %d, config.json has %d", p.name, p.expert, l.Config.NumExperts)
	}
	gated := l.Config.Activation.Gated()
	if l.Config.WeightOrder != spec.OutIn || gated && l.Config.GateUp != spec.Concatenated {
		return 0, 0, fmt.Errorf("tensor %q is of one expert, where %v has all in one", p.name, l.Config)
	}
	each := s.Elements() / int64(l.Config.NumExperts)
	at, count = int64(p.expert)*each, each
	if p.tensor == "W1" && gated {
		count /= 2
		if p.piece == up {
			at += count
		}
	}
	return at, count, nil
}
