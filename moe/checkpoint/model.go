package checkpoint

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"sonicmoe/internal/spec"
)

// maxLayers is the largest accepted number of layers, many times that of any published model.
const maxLayers = 4096

// Model is the description of a model's expert layers in its config.json.
type Model struct {
	// Name is the model's name in the list of Published. It is empty for other models.
	Name string
	// Type is the model_type. In a model of several parts it is the text model's type.
	Type string
	// Config is the layer, with its weights laid out as in transformers.
	Config spec.Config
	// Layers is the number of layers of the model. MoE lists the numbers of the layers with
	// experts.
	Layers int
	MoE    []int
	// Outside names the parts of the model's block that Config does not describe. If
	// it is empty, the layer is the whole block.
	Outside []string
	// Assumed names the missing fields and the values assumed for them.
	Assumed []string
	// Unknown lists fields that may belong to the layer and that Read does not use.
	Unknown []string
	// Quantised describes the format of quantised weights in the model's files. It also says
	// whether package weights loads the format, and how many bytes a layer's experts have. It is
	// empty for other files. Config has plain weights. Packed returns the layer with the files'
	// format.
	Quantised string

	packed spec.Config // the result of Packed; Weights is "" if it is Config
}

// Read reads a config.json. An error names the field and the values that would be right. If the
// model type is refused or not known, the returned Model has only Unknown.
func Read(data []byte) (Model, error) {
	f, err := parse(data)
	if err != nil {
		return Model{}, err
	}
	name, _ := f.find("model_type")
	kind := ""
	if name != "" {
		kind = f.text("", "model_type")
	}
	if f.err != nil {
		return Model{}, f.err
	}
	kind, read, err := f.lookup(kind)
	if err != nil {
		return Model{Unknown: f.unknown()}, err
	}
	f.defaults()
	m := Model{Type: kind}
	m.Config.Type = f.elementType()
	sparse := read(f, &m.Config)
	if m.Config.Logits == spec.BF16 && m.Config.Type == spec.F16 {
		m.Config.Logits = spec.F16
	}
	if m.Layers = f.listed; m.Layers == 0 {
		m.Layers = f.size("num_hidden_layers", "n_layers")
	}
	if m.Layers > maxLayers {
		return Model{}, fmt.Errorf("%s: the model has %d layers, must have at most %d", kind, m.Layers, maxLayers)
	}
	for i := range m.Layers {
		if sparse == nil || sparse(i) {
			m.MoE = append(m.MoE, i)
		}
	}
	f.agree(m.MoE, m.Layers)
	unknown := f.overrides()
	m.Outside, m.Assumed, m.Unknown = f.outside, f.assumed, append(f.unknown(), unknown...)
	if f.err == nil && len(m.MoE) == 0 {
		f.fail("none of its %d layers has experts", m.Layers)
	}
	if f.err == nil {
		f.err = m.Config.Check()
	}
	m.quantised(f)
	if f.err != nil {
		return Model{}, fmt.Errorf("%s: %w", kind, f.err)
	}
	return m, nil
}

// lookup finds the family of a model_type. The model type may have a family of its own, copy
// another type, or be the text part of a model.
func (f *fields) lookup(kind string) (name string, read family, err error) {
	name = kind
	if to, ok := aliases[kind]; ok {
		name = to
	}
	for _, of := range []string{name, strings.TrimSuffix(name, "_text")} {
		if read, ok := families[of]; ok {
			return of, read, nil
		}
		if why, ok := refused[of]; ok {
			return "", nil, fmt.Errorf("model_type %q is refused: %s", kind, why)
		}
	}
	err = fmt.Errorf("model_type %q is not known (the table of models in README.md lists those that are)", kind)
	if kind == "" {
		err = errors.New("config.json has no model_type")
	}
	if !slices.ContainsFunc(numbersOfExperts, f.has) {
		err = fmt.Errorf("%w, and it has none of %s: a dense model has no expert layer", err, strings.Join(numbersOfExperts, ", "))
	}
	return "", nil, err
}

// elementType returns the element type of the weights. It returns bf16 for weights that are stored
// in another type and computed in bf16.
func (f *fields) elementType() spec.Type {
	name, raw := f.find("dtype", "torch_dtype")
	if raw == nil {
		f.assumed = append(f.assumed, "dtype is not there: bfloat16")
		return spec.BF16
	}
	switch t := f.text("", name); t {
	case "bfloat16":
		return spec.BF16
	case "float16":
		return spec.F16
	default:
		f.assumed = append(f.assumed, fmt.Sprintf("%s is %q: the layer computes in bfloat16", name, t))
		return spec.BF16
	}
}
