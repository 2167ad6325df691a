package spec

// TensorID names a tensor of a pass. The constants TensorX to TensorDSharedGate are generated
// from Tensors. The ids of the weights' gradients follow those of the table.
type TensorID uint8

// Row returns the tensor's row of the table.
func Row(id TensorID) *TensorRow { return &rows[id] }

// String returns the tensor's name: "W1".
func (id TensorID) String() string {
	if int(id) < len(rows) {
		return rows[id].Name
	}
	return name("TensorID", nil, id)
}

// TensorRow describes a tensor: a row of the table Tensors. Shapes, argument checks,
// allocation, estimates, and the C and Python bindings use the table.
type TensorRow struct {
	// Name is the name of the tensor's field in Shapes or GradientShapes, and in the structs of
	// package moe.
	Name string
	// C is the name of the tensor's field in the structs of sonicmoe.h, and the tensor's name
	// in Python. It is empty for a tensor in the workspace.
	C    string
	Role Role
	// Backward reports whether the tensor exists only in the backward pass.
	Backward bool
	Type     TypeRule
	// Dims are the extents, outermost first; unused ones are 0.
	Dims [3]Dim
	// Ordered reports whether Config.InOut swaps the tensor's last two dimensions.
	Ordered bool
	// Needs are the features that a layer must have to have the tensor.
	Needs Feature
	// Gradient reports whether the tensor is a weight with a gradient. The row of the gradient
	// is a copy of the weight's row, with D before the name.
	Gradient bool
	// ForwardOnly reports whether only the forward pass has the tensor.
	ForwardOnly bool
	// With names a weight whose gradient is written by the same kernel as this weight's.
	With string
	// Doc is the comment of the tensor's field in generated code.
	Doc string

	// GradientID is the id of the weight's gradient. WithID is the id of the tensor that With
	// names. In the row of a gradient, Of is the id of the weight. AllRows sets them. 0 means none.
	GradientID, WithID, Of TensorID
}

// Role says what a pass does with a tensor.
type Role uint8

const (
	RoleInput Role = iota
	RoleOutput
	// RoleRouting tensors are written by passes that route, and read by other passes.
	RoleRouting
	// RoleSaved tensors are written by the forward pass and read by the backward pass.
	RoleSaved
	// RoleRouterWeight is a weight that only routing reads. RoleExpertWeight is any other
	// weight.
	RoleRouterWeight
	RoleExpertWeight
	RoleWeightGradient
	// RoleScratch tensors are in the workspace.
	RoleScratch
)

// Weight reports whether the tensor is a weight.
func (r Role) Weight() bool { return r == RoleRouterWeight || r == RoleExpertWeight }

// TypeRule says how the element type of a tensor follows from the Config.
type TypeRule uint8

const (
	// OfLayer is Config.Type. OfRouter is also Config.Type, but F32 with RouterF32. OfLogits is
	// Config.Logits.
	OfLayer TypeRule = iota
	OfRouter
	OfLogits
	AlwaysF32
	AlwaysI32
	// OfGradient is the element type that the caller wants for gradients of weights.
	OfGradient
	// OfCodes is Config.Type for plain weights, or U8 for the codes of packed weights. The last
	// extent of codes is in bytes. OfScales is the type of the scales, and OfZeros is the type of
	// the zero points. Both have one element for each block.
	OfCodes
	OfScales
	OfZeros
)

// Dim is an extent of a tensor that follows from a Config and the number of tokens.
type Dim uint8

const (
	DimT          Dim = iota + 1 // tokens
	DimR                         // rows: T·K
	DimK                         // experts of one token
	DimE                         // experts
	DimD                         // Hidden
	DimN                         // Intermediate
	DimW1                        // rows of an expert's W1: 2n, but n without a gate or with GateUp Apart
	DimH                         // HWidth
	DimShared                    // SharedWidth
	DimSharedH                   // 2·SharedWidth, or SharedWidth without a gate
	DimRank                      // LoRARank
	DimPaddedRank                // PaddedRank
	DimFactors                   // experts, times the places of a table of adapters
	DimAdapters                  // places of a table of adapters
	Dim1                         // the number 1
	Dim2                         // the number 2
)

// Feature is a property of a layer on which the presence of a tensor depends.
type Feature uint16

const (
	HasBias Feature = 1 << iota
	HasRouterBias
	HasSelectionBias
	HasExpertScale
	HasShared
	HasApart
	HasGate
	HasSharedGate
	HasScales
	HasZeros
	HasGlobal
	HasPlain
	HasAdapter
	HasNoAdapter
	HasTable
	HasTrained
)

// features returns the features of the layer.
func (c *Config) features() (f Feature) {
	p := c.packing()
	for i, has := range [...]bool{c.Bias, c.RouterBias, c.SelectionBias, c.ExpertScale,
		c.SharedWidth() > 0, c.GateUp == Apart, c.Activation.Gated(), c.SharedGate, p != nil, p != nil && p.HasZeros, p != nil && p.HasGlobal, p == nil, c.LoRARank != 0, c.LoRARank == 0, HasAdapters(*c), HasLoRA(*c)} {
		if has {
			f |= 1 << i
		}
	}
	return f
}

// Tensors is the table of tensors. Arguments are checked in its order. After a change run go
// generate ./moe. It writes the constants, the fields of Shapes and of package moe, and the C
// and Python bindings. Fields of new tensors go to the end of the structs of sonicmoe.h.
var Tensors = []TensorRow{
	{Name: "X", C: "x", Role: RoleInput, Dims: [3]Dim{DimT, DimD}, Doc: "X [T, d] is the input."},
	{Name: "O", C: "o", Role: RoleOutput, Dims: [3]Dim{DimT, DimD}, Doc: "O [T, d] is the output."},

	{Name: "AdapterIDs", C: "adapter_ids", Role: RoleInput, Type: AlwaysI32, Dims: [3]Dim{DimT}, Needs: HasTable, ForwardOnly: true,
		Doc: "AdapterIDs [T] i32 are the places of the tokens' adapters, or -1 for none."},
	{Name: "AdapterMisses", C: "adapter_misses", Role: RoleOutput, Type: AlwaysI32, Dims: [3]Dim{Dim1}, Needs: HasTable, ForwardOnly: true,
		Doc: "AdapterMisses [1] i32 counts tokens that name a place without an adapter."},

	{Name: "Router", C: "router", Role: RoleRouterWeight, Type: OfRouter, Dims: [3]Dim{DimE, DimD}, Gradient: true,
		Doc: "Router [E, d] is the router's matrix, of the layer's Type, or f32 with RouterF32."},
	{Name: "RouterBias", C: "router_bias", Role: RoleRouterWeight, Type: AlwaysF32, Dims: [3]Dim{DimE}, Needs: HasRouterBias, Gradient: true, ForwardOnly: true,
		Doc: "RouterBias [E] f32 is added to the logits."},
	{Name: "SelectionBias", C: "selection_bias", Role: RoleRouterWeight, Type: AlwaysF32, Dims: [3]Dim{DimE}, Needs: HasSelectionBias, ForwardOnly: true,
		Doc: "SelectionBias [E] f32 is added to the raw scores to choose experts. It has no gradient."},
	{Name: "ExpertScale", C: "expert_scale", Role: RoleRouterWeight, Type: AlwaysF32, Dims: [3]Dim{DimE}, Needs: HasExpertScale, Gradient: true,
		Doc: "ExpertScale [E] f32 multiplies the scores of each expert."},

	{Name: "W1", C: "w1", Role: RoleExpertWeight, Type: OfCodes, Dims: [3]Dim{DimE, DimW1, DimD}, Ordered: true, Gradient: true,
		Doc: "W1 [E, 2n, d] is gate and up, in the order of Config.GateUp. It is [E, n, d]\nwithout a gate, and with GateUp \"apart\", where W1 is the gate and W3 is up.\nWith InOut the last two dimensions of W1, W3 and W2 are swapped. Packed weights are\nu8 [E, 2n, bytes of d codes]; see Config.Weights."},
	{Name: "W3", C: "w3", Role: RoleExpertWeight, Type: OfCodes, Dims: [3]Dim{DimE, DimN, DimD}, Ordered: true, Needs: HasApart, Gradient: true, With: "W1",
		Doc: "W3 [E, n, d] is up with GateUp \"apart\"."},
	{Name: "W2", C: "w2", Role: RoleExpertWeight, Type: OfCodes, Dims: [3]Dim{DimE, DimD, DimN}, Ordered: true, Gradient: true,
		Doc: "W2 [E, d, n] is down."},
	{Name: "B1", C: "b1", Role: RoleExpertWeight, Dims: [3]Dim{DimE, DimW1}, Needs: HasBias, Gradient: true,
		Doc: "B1 [E, 2n] or [E, n] is the bias of W1, in the order of its rows. Biases must be\nfinite: a value that is not makes sums of neighbouring columns NaN."},
	{Name: "B3", C: "b3", Role: RoleExpertWeight, Dims: [3]Dim{DimE, DimN}, Needs: HasBias | HasApart, Gradient: true, With: "B1",
		Doc: "B3 [E, n] is the bias of W3."},
	{Name: "B2", C: "b2", Role: RoleExpertWeight, Dims: [3]Dim{DimE, DimD}, Needs: HasBias, Gradient: true,
		Doc: "B2 [E, d] is the bias of W2."},
	{Name: "SharedW1", C: "shared_w1", Role: RoleExpertWeight, Dims: [3]Dim{DimShared, DimD}, Needs: HasShared, Gradient: true,
		Doc: "SharedW1 [sn, d], sn = SharedWidth, is the gate of the shared experts, or up\nwithout a gate. GateUp and InOut do not apply to shared experts."},
	{Name: "SharedW3", C: "shared_w3", Role: RoleExpertWeight, Dims: [3]Dim{DimShared, DimD}, Needs: HasShared | HasGate, Gradient: true, With: "SharedW1",
		Doc: "SharedW3 [sn, d] is up of gated shared experts."},
	{Name: "SharedW2", C: "shared_w2", Role: RoleExpertWeight, Dims: [3]Dim{DimD, DimShared}, Needs: HasShared, Gradient: true,
		Doc: "SharedW2 [d, sn] is down of the shared experts."},
	{Name: "SharedGate", C: "shared_gate", Role: RoleExpertWeight, Dims: [3]Dim{DimD}, Needs: HasShared | HasSharedGate, Gradient: true,
		Doc: "SharedGate [d] is wg: the output of the shared experts is multiplied by\nsigmoid(x·wg)."},
	{Name: "W1Scale", C: "w1_scale", Role: RoleExpertWeight, Type: OfScales, Dims: [3]Dim{DimE, DimW1, DimD}, Needs: HasScales,
		Doc: "W1Scale [E, blocks of 2n, blocks of d] are the scales of packed W1; see\nConfig.Weights."},
	{Name: "W3Scale", C: "w3_scale", Role: RoleExpertWeight, Type: OfScales, Dims: [3]Dim{DimE, DimN, DimD}, Needs: HasScales | HasApart,
		Doc: "W3Scale [E, blocks of n, blocks of d] are the scales of packed W3."},
	{Name: "W2Scale", C: "w2_scale", Role: RoleExpertWeight, Type: OfScales, Dims: [3]Dim{DimE, DimD, DimN}, Needs: HasScales,
		Doc: "W2Scale [E, blocks of d, blocks of n] are the scales of packed W2."},
	{Name: "W1Zero", C: "w1_zero", Role: RoleExpertWeight, Type: OfZeros, Dims: [3]Dim{DimE, DimW1, DimD}, Needs: HasZeros,
		Doc: "W1Zero u8, with the extents of W1Scale, are the zero points of packed W1, 0 to 15;\nsee Config.Weights."},
	{Name: "W3Zero", C: "w3_zero", Role: RoleExpertWeight, Type: OfZeros, Dims: [3]Dim{DimE, DimN, DimD}, Needs: HasZeros | HasApart,
		Doc: "W3Zero are the zero points of packed W3."},
	{Name: "W2Zero", C: "w2_zero", Role: RoleExpertWeight, Type: OfZeros, Dims: [3]Dim{DimE, DimD, DimN}, Needs: HasZeros,
		Doc: "W2Zero are the zero points of packed W2."},
	{Name: "W1Global", C: "w1_global", Role: RoleExpertWeight, Type: AlwaysF32, Dims: [3]Dim{DimE}, Needs: HasGlobal,
		Doc: "W1Global [E] f32 multiplies the scales of each expert's packed W1; see\nConfig.Weights."},
	{Name: "W3Global", C: "w3_global", Role: RoleExpertWeight, Type: AlwaysF32, Dims: [3]Dim{DimE}, Needs: HasGlobal | HasApart,
		Doc: "W3Global [E] f32 multiplies the scales of each expert's packed W3."},
	{Name: "W2Global", C: "w2_global", Role: RoleExpertWeight, Type: AlwaysF32, Dims: [3]Dim{DimE}, Needs: HasGlobal,
		Doc: "W2Global [E] f32 multiplies the scales of each expert's packed W2."},
	{Name: "LoraA1", C: "lora_a1", Role: RoleExpertWeight, Dims: [3]Dim{DimFactors, DimRank, DimD}, Ordered: true, Needs: HasAdapter, Gradient: true,
		Doc: "LoraA1 [E, r, d] is the adapter's first factor for W1, gate and up together. With\nInOut the last two dimensions of all factors are swapped. With LoRAAdapters every\nfactor has LoRAAdapters·E matrices, those of an adapter's experts in a row, and InOut\ndoes not apply to factors."},
	{Name: "LoraB1", C: "lora_b1", Role: RoleExpertWeight, Dims: [3]Dim{DimFactors, DimW1, DimRank}, Ordered: true, Needs: HasAdapter, Gradient: true,
		Doc: "LoraB1 [E, 2n, r] or [E, n, r] is its second factor, with the rows of W1."},
	{Name: "LoraB3", C: "lora_b3", Role: RoleExpertWeight, Dims: [3]Dim{DimFactors, DimN, DimRank}, Ordered: true, Needs: HasAdapter | HasApart, Gradient: true, With: "LoraB1",
		Doc: "LoraB3 [E, n, r] is the second factor for W3. The first one is LoraA1."},
	{Name: "LoraA2", C: "lora_a2", Role: RoleExpertWeight, Dims: [3]Dim{DimFactors, DimRank, DimN}, Ordered: true, Needs: HasAdapter, Gradient: true,
		Doc: "LoraA2 [E, r, n] is the adapter's first factor for W2."},
	{Name: "LoraB2", C: "lora_b2", Role: RoleExpertWeight, Dims: [3]Dim{DimFactors, DimD, DimRank}, Ordered: true, Needs: HasAdapter, Gradient: true,
		Doc: "LoraB2 [E, d, r] is its second factor."},
	{Name: "LoraScales", C: "lora_scales", Role: RoleExpertWeight, Type: AlwaysF32, Dims: [3]Dim{DimAdapters}, Needs: HasTable, ForwardOnly: true,
		Doc: "LoraScales [LoRAAdapters] f32 multiplies the product of each adapter: alpha over its\nrank, or over the root of its rank. 0 means that the place has no adapter."},

	{Name: "Logits", C: "logits", Role: RoleSaved, Type: OfLogits, Dims: [3]Dim{DimT, DimE}, Doc: "Logits [T, E] have the type of Config.Logits."},
	{Name: "Scores", C: "scores", Role: RoleRouting, Type: AlwaysF32, Dims: [3]Dim{DimT, DimK}, Doc: "Scores [T, K] f32 are the weights of each token's experts, best first."},
	{Name: "ExpertIDs", C: "expert_ids", Role: RoleRouting, Type: AlwaysI32, Dims: [3]Dim{DimT, DimK}, Doc: "ExpertIDs [T, K] i32 are each token's experts."},
	{Name: "H", C: "h", Role: RoleSaved, Dims: [3]Dim{DimR, DimH},
		Doc: "H [R, 2n], R = T·K, or [R, n] without a gate, is the pre-activation, gate then\nup. Rows are grouped by expert."},
	{Name: "LoraU", C: "lora_u", Role: RoleSaved, Dims: [3]Dim{Dim2, DimR, DimPaddedRank}, Needs: HasTrained,
		Doc: "LoraU [2, R, r] are the rows' products with LoraA1, and with LoraA2, times the adapter's factor.\nHere r is LoRARank, rounded up to a multiple of 8."},
	{Name: "A", Role: RoleScratch, Dims: [3]Dim{DimR, DimN}, Doc: "A [R, n] is the activation. In the workspace n is rounded up to a multiple of 64."},
	{Name: "Y", Role: RoleScratch, Dims: [3]Dim{DimR, DimD}, Doc: "Y [R, d] is the output of each row's expert."},
	{Name: "SharedH", C: "shared_h", Role: RoleSaved, Dims: [3]Dim{DimT, DimSharedH}, Needs: HasShared,
		Doc: "SharedH [T, 2sn] or [T, sn] is the pre-activation of the shared experts."},
	{Name: "SharedA", Role: RoleScratch, Dims: [3]Dim{DimT, DimShared}, Needs: HasShared, Doc: "SharedA [T, sn] is the activation of the shared experts."},
	{Name: "SharedY", Role: RoleScratch, Dims: [3]Dim{DimT, DimD}, Needs: HasShared, Doc: "SharedY [T, d] is the output of the shared experts."},
	{Name: "SharedScore", Role: RoleScratch, Type: AlwaysF32, Dims: [3]Dim{DimT}, Needs: HasShared | HasSharedGate, Doc: "SharedScore [T] f32 is sigmoid(x·wg)."},

	{Name: "DO", C: "d_o", Role: RoleInput, Backward: true, Dims: [3]Dim{DimT, DimD}, Doc: "DO [T, d] is the gradient of O."},
	{Name: "DX", C: "dx", Role: RoleOutput, Backward: true, Dims: [3]Dim{DimT, DimD}, Doc: "DX [T, d] is the gradient of X."},
	{Name: "DScores", C: "d_scores", Role: RoleOutput, Backward: true, Type: AlwaysF32, Dims: [3]Dim{DimT, DimK}, Doc: "DScores [T, K] f32 is the gradient of the scores."},
	{Name: "DLogits", C: "d_logits", Role: RoleInput, Backward: true, Type: AlwaysF32, Dims: [3]Dim{DimT, DimE},
		Doc: "DLogits [T, E] f32 is what other losses add to the gradients of the logits."},
	{Name: "RouterLosses", C: "router_losses", Role: RoleOutput, Backward: true, Type: AlwaysF32, Dims: [3]Dim{Dim2},
		Doc: "RouterLosses [2] f32 are the balance loss and the z-loss."},
	{Name: "DH", Role: RoleScratch, Backward: true, Dims: [3]Dim{DimR, DimH}, Doc: "DH [R, 2n] or [R, n] is the gradient of H times the row's weight."},
	{Name: "ScaledA", Role: RoleScratch, Backward: true, Dims: [3]Dim{DimR, DimN}, Doc: "ScaledA [R, n] is the activation times the row's score."},
	{Name: "DXRows", Role: RoleScratch, Backward: true, Dims: [3]Dim{DimR, DimD}, Doc: "DXRows [R, d] is the gradient of each row's input."},
}

// rows holds the rows of Tensors, followed by the rows of the weights' gradients. Its index is
// a TensorID.
var rows = AllRows(Tensors)

// These lists hold the ids of the tensors of one kind, in the order of the table.
var (
	Weights         = idsOf(func(r *TensorRow) bool { return r.Role.Weight() })
	RouterWeights   = idsOf(func(r *TensorRow) bool { return r.Role == RoleRouterWeight })
	ExpertWeights   = idsOf(func(r *TensorRow) bool { return r.Role == RoleExpertWeight })
	WeightGradients = idsOf(func(r *TensorRow) bool { return r.Role == RoleWeightGradient })

	forward  = idsOf(func(r *TensorRow) bool { return !r.Backward })
	backward = idsOf(func(r *TensorRow) bool { return r.Backward })
)

func idsOf(is func(*TensorRow) bool) (ids []TensorID) {
	for id := range rows {
		if is(&rows[id]) {
			ids = append(ids, TensorID(id))
		}
	}
	return ids
}

// AllRows returns the rows of a table, followed by the rows of the weights' gradients. A row's
// index is its id.
func AllRows(table []TensorRow) []TensorRow {
	rows := append([]TensorRow(nil), table...)
	for of, r := range table {
		if !r.Gradient {
			continue
		}
		rows[of].GradientID = TensorID(len(rows))
		d := TensorRow{Name: "D" + r.Name, C: "d_" + r.C, Role: RoleWeightGradient, Backward: true, Type: OfGradient, Dims: r.Dims,
			Ordered: r.Ordered, Needs: r.Needs, Of: TensorID(of), Doc: "D" + r.Name + " is the gradient of " + r.Name + "."}
		if r.Type == OfCodes {
			d.Needs |= HasPlain
		}
		if r.IsFrozen() {
			d.Needs |= HasNoAdapter
		}
		if r.Needs&HasAdapter != 0 {
			d.Needs |= HasTrained
		}
		if r.Type == AlwaysF32 {
			d.Type = AlwaysF32
			d.Doc = "D" + r.Name + " [E] f32 is the gradient of " + r.Name + "."
		}
		if r.With != "" {
			d.With = "D" + r.With
		}
		rows = append(rows, d)
	}
	for id := range rows {
		r := &rows[id]
		for with := range rows {
			if r.With == rows[with].Name {
				r.WithID = TensorID(with)
			}
		}
	}
	return rows
}
